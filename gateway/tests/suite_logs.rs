//! The scan for secrets over everything that the integration tests logged. Runs behind them: cargo runs test binaries in
//! the order of their names.

use std::path::Path;

#[test]
fn nothing_that_the_suite_planted_is_in_anything_that_it_logged() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite-logs");
    let entries = std::fs::read_dir(&folder);
    let entries = entries.unwrap_or_else(|_| panic!("no logs: run the integration tests (`--test it`) first"));
    let planted = [
        "planted-key-",
        "planted-idempotency-key",
        "planted-unknown-key",
        "12345678901234",
        "20000000000002",
        "48151623421084",
        "홍길동",
        "전우치",
        "남몰래",
    ];
    let (mut files, mut bytes) = (0, 0);
    for entry in entries {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        for secret in planted {
            if let Some(line) = text.lines().find(|line| line.contains(secret)) {
                panic!("{} holds {secret}: {line}", path.display());
            }
        }
        files += 1;
        bytes += text.len();
    }
    assert!(files > 0 && bytes > 10_000, "{files} files with {bytes} bytes: the suite did not log");
}
