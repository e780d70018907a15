//! The scenarios run: each in its shortest form, on whatever was built. What they measure is only good on a release build.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::disallowed_methods, reason = "a test's own switch")]

use std::process::Command;

/// Runs a scenario; its results go to a folder of the test's own.
fn run(arguments: &[&str]) -> (Option<i32>, String, tempfile::TempDir) {
    let results = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(arguments)
        .arg("--results")
        .arg(results.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), told, results)
}

#[test]
fn transfers_leave_a_table_figures_and_a_plot() {
    let (code, told, results) = run(&["transfers", "--rounds", "1", "--slice-ms", "100"]);
    assert_eq!(code, Some(0), "{told}");
    let read = |end: &str| std::fs::read_to_string(results.path().join(format!("transfers.{end}"))).unwrap();
    assert!(read("md").contains("| 64 |") && read("svg").contains("<polyline"));
    let json: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 5);
}

/// `SOAK_SECONDS=3600` for an hour.
#[test]
fn nothing_grows_at_half_the_knee() {
    let seconds = std::env::var("SOAK_SECONDS").unwrap_or_else(|_| "36".to_owned());
    let (code, told, _results) = run(&["soak", "--seconds", &seconds]);
    assert_eq!(code, Some(0), "{told}");
}

#[test]
fn under_three_times_the_knee_what_is_accepted_is_in_time_and_the_rest_is_refused_at_once() {
    let (code, told, _results) = run(&["overload", "--seconds", "12"]);
    assert_eq!(code, Some(0), "{told}");
}
