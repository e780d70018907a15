//! Documents that are rendered from the code, or that promise commands. `UPDATE_DOCUMENTS=1` writes the rendered parts.

use std::path::PathBuf;

use gwanmun::{config, http};

fn page(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Compares the part between the two marks with what the code says.
fn check_rendered(name: &str, rendered: &str) {
    let (begin, end) = ("<!-- rendered from the code: begin -->\n", "<!-- rendered from the code: end -->");
    let text = std::fs::read_to_string(page(name)).unwrap();
    let (before, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{name} has no mark"));
    let (now, after) = rest.split_once(end).unwrap();
    if std::env::var("UPDATE_DOCUMENTS").is_ok() {
        std::fs::write(page(name), format!("{before}{begin}{rendered}{end}{after}")).unwrap();
        return;
    }
    assert!(now == rendered, "{name} is not what the code says; run this test with UPDATE_DOCUMENTS=1");
}

#[test]
fn the_failure_table_is_what_the_code_says() {
    check_rendered("docs/FAILURES.md", &http::catalogue::render_markdown());
}

#[test]
fn the_table_of_settings_is_what_the_code_says() {
    check_rendered("docs/OPERATIONS.md", &config::render_markdown());
}

#[test]
fn the_first_screen_of_both_readmes_has_the_two_commands_and_the_curl_line() {
    for name in ["README.md", "README.ko.md"] {
        let text = std::fs::read_to_string(page(name)).unwrap();
        let first_screen = text.lines().take(40).collect::<Vec<_>>().join("\n");
        for line in [
            "cargo run --release -- demo",
            ".ci/test",
            "curl -i http://127.0.0.1:8090/api/gateway/balance",
            "-d '{\"accountNo\":\"12345678901234\"}'",
        ] {
            assert!(first_screen.contains(line), "{name}: {line}");
        }
    }
}
