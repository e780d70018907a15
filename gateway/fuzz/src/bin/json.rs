//! Any bytes as a JSON body for any request: a refusal that names a field, or a record that encodes or is refused.
#![no_main]

use std::sync::LazyLock;

use codec::{Accepts, Catalog, Record, decode, encode};
use libfuzzer_sys::fuzz_target;

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::builtin().expect("the built-in layouts"));

fuzz_target!(|data: &[u8]| {
    let Some((choice, body)) = data.split_first() else { return };
    let names = CATALOG.names();
    let layout = CATALOG.get(names[usize::from(*choice) % names.len()]).expect("it is in the catalog");
    let Ok(record) = Record::from_json(layout, body, Accepts::Body) else { return };
    let mut frame = Vec::new();
    // Fields that the gateway fills are missing here; what is whole comes back as it was.
    if encode(&record, &mut frame).is_ok() {
        assert!(decode(layout, &frame).expect("what was written can be read") == record);
    }
});
