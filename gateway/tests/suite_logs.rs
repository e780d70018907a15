//! The scan for secrets over everything that the integration tests logged. Runs behind them: cargo runs test binaries in
//! the order of their names.

#[path = "it/planted.rs"]
mod planted;

use std::path::Path;

#[test]
fn nothing_that_the_suite_planted_is_in_anything_that_it_logged() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite-logs");
    let entries = std::fs::read_dir(&folder);
    let entries = entries.unwrap_or_else(|_| panic!("no logs: run the integration tests (`--test it`) first"));
    let (mut files, mut bytes) = (0, 0);
    for entry in entries {
        let path = entry.unwrap().path();
        let text = std::fs::read(&path).unwrap();
        if let Some((secret, line)) = planted::found(&text) {
            panic!("{} holds {secret}: {line}", path.display());
        }
        files += 1;
        bytes += text.len();
    }
    assert!(files > 0 && bytes > 10_000, "{files} files with {bytes} bytes: the suite did not log");
}
