//! Any bytes as any built-in message: a refusal, or a record that encodes back to what it was read from.
#![no_main]

use std::sync::LazyLock;

use codec::{Catalog, decode, encode};
use libfuzzer_sys::fuzz_target;

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::builtin().expect("the built-in layouts"));

fuzz_target!(|data: &[u8]| {
    let Some((choice, message)) = data.split_first() else { return };
    let names = CATALOG.names();
    let layout = CATALOG.get(names[usize::from(*choice) % names.len()]).expect("it is in the catalog");
    let Ok(record) = decode(layout, message) else { return };
    let mut again = Vec::new();
    encode(&record, &mut again).expect("what was read can be written");
    let reread = decode(layout, &again).expect("what was written can be read");
    assert!(reread == record, "what comes back is what was there");
});
