//! The codec's tests against bytes that another encoder made, and against generated ones.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

mod framing;
mod golden;
mod layouts;
mod properties;

use std::sync::Arc;

use codec::{Catalog, Layout};

/// A built-in layout, in the charset that a test asks for.
fn layout(name: &str, charset: &str) -> Arc<Layout> {
    if charset == "euc-kr" {
        return Arc::clone(Catalog::builtin().unwrap().get(name).unwrap());
    }
    let path = format!("{}/layouts/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("charset = \"euc-kr\"", &format!("charset = \"{charset}\""));
    Arc::new(Layout::from_toml(&path, &text).unwrap())
}
