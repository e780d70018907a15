//! Any text as a layout file: a list of faults, or a layout whose fields follow each other without a gap.
#![no_main]

use codec::Layout;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(layout) = Layout::from_toml("fuzz.toml", text) else { return };
    let mut offset = 0;
    for field in layout.fields() {
        assert_eq!(field.offset(), offset);
        offset += if field.fields().is_empty() { field.length() } else { 0 };
    }
    assert_eq!(offset, layout.header_length());
});
