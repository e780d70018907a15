//! The command line, as a person uses it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::client::{Client, get, post};
use crate::harness::{config_text, simulator};
use crate::process::{Process, write_config};

pub(crate) fn gwanmun(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const BALANCE_REPLY: &str = "303231303132333435363738393031323334494e303130303030303638373934343530303030303030c1a4bbf320c3b3b8aeb5c7befabdc0b4cfb4d920";

#[test]
fn decode_shows_a_table_or_json_from_hex_or_raw_bytes() {
    let table = out(&gwanmun(&["decode", "balance-reply"], BALANCE_REPLY.as_bytes()));
    assert!(table.contains("    22     15  balance            000006879445000"), "{table}");
    assert!(table.contains("정상 처리되었습니다"));
    let json = out(&gwanmun(&["decode", "balance-reply", "--json"], &hex::decode(BALANCE_REPLY).unwrap()));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["balance"], 6_879_445_000_i64);
    let short = gwanmun(&["decode", "balance-reply"], b"3032");
    assert_eq!((short.status.code(), err(&short).contains("length")), (Some(65), true));
    let unknown = gwanmun(&["decode", "nothing"], b"");
    assert_eq!((unknown.status.code(), err(&unknown).contains("balance-reply")), (Some(64), true));
}

#[test]
fn encode_writes_hex_or_raw_bytes_and_names_the_field_that_is_wrong() {
    let json = br#"{"accountNo":"12345678901234","txCode":"IN01","balance":6879445000,"responseCode":"0000","responseMessage":"\uc815\uc0c1 \ucc98\ub9ac\ub418\uc5c8\uc2b5\ub2c8\ub2e4"}"#;
    assert_eq!(out(&gwanmun(&["encode", "balance-reply"], json)).trim(), BALANCE_REPLY);
    let raw = gwanmun(&["encode", "balance-reply", "--raw"], json).stdout;
    assert_eq!(raw, hex::decode(BALANCE_REPLY).unwrap());
    let wrong =
        gwanmun(&["encode", "balance-request"], r#"{"tranId":"GWMNU20261129000000000","accountNo":"12x"}"#.as_bytes());
    assert_eq!(
        (wrong.status.code(), err(&wrong)),
        (Some(65), "gwanmun: accountNo: must be ASCII digits only\n".to_owned())
    );
}

#[test]
fn a_new_key_is_shown_once_with_lines_that_the_configuration_takes() {
    let output = out(&gwanmun(&["keys", "new", "--client", "fintech-z", "--role", "client"], b""));
    let key = output.lines().find(|line| line.starts_with("gwm_")).unwrap();
    assert_eq!(key.len(), 68);
    let entry = output.split_once("[[client]]").unwrap().1;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gwanmun.toml");
    let routes = include_str!("../../routes.toml");
    std::fs::write(&file, format!("{routes}\n[[client]]{entry}")).unwrap();
    let check = gwanmun(&["check", "--config", file.to_str().unwrap()], b"");
    assert!(check.status.success(), "{}", err(&check));
    assert!(!std::fs::read_to_string(&file).unwrap().contains(key));
    let other = out(&gwanmun(&["keys", "new", "--client", "fintech-z", "--role", "client"], b""));
    assert!(!other.contains(key));
}

/// A configuration with a fault in nearly every line.
const BROKEN: &[&str] = &[
    "[server]",
    "listen = \"nowhere\"",
    "colour = \"red\"",
    "drain = \"soon\"",
    "[ledger]",
    "search_key = \"short-planted-secret\"",
    "[institution.bank]",
    "address = \"127.0.0.1:1\"",
    "framing = \"fixed\"",
    "request_length = 52",
    "reply_length = 60",
    "connect_timeout = \"3s\"",
    "borrow_wait = \"3s\"",
    "probe_timeout = \"3s\"",
    "retry_wait_max = \"1ms\"",
    "codes_success = [\"0000\"]",
    "codes_declined = [\"0000\"]",
    "[institution.other-bank]",
    "address = \"127.0.0.1:1\"",
    "framing = \"length-prefixed\"",
    "length_digits = 2",
    "codes_success = []",
    "[institution.other_bank]",
    "address = \"127.0.0.1:1\"",
    "framing = \"length-prefixed\"",
    "codes_success = [\"0000\"]",
    "[[route]]",
    "name = \"balance\"",
    "paths = [\"/balance\"]",
    "tx_code = \"IN01\"",
    "kind = \"inquiry\"",
    "institution = \"bank\"",
    "request = \"balance-request\"",
    "reply = \"balance-reply\"",
    "account = \"txCode\"",
    "[[route]]",
    "name = \"lost\"",
    "paths = [\"/api/lost\", \"/api/pool/lost\"]",
    "tx_code = \"XX01\"",
    "kind = \"guess\"",
    "institution = \"no-bank\"",
    "request = \"no-layout\"",
    "reply = \"balance-reply\"",
    "[[route]]",
    "name = \"wide\"",
    "paths = [\"/api/a b?c\"]",
    "tx_code = \"XX02\"",
    "kind = \"mutation\"",
    "institution = \"other-bank\"",
    "request = \"transfer-request\"",
    "reply = \"transfer-reply\"",
];

#[test]
fn check_names_every_problem_with_file_and_line_and_never_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, BROKEN.join("\n")).unwrap();
    let check = gwanmun(&["check", "--config", file.to_str().unwrap()], b"");
    assert_eq!(check.status.code(), Some(64));
    let told = err(&check);
    for (line, words) in [
        (2, "`listen` must be host:port"),
        (3, "there is no setting `colour`"),
        (4, "`drain` must be a time"),
        (6, "`search_key` must have at least 32"),
        (15, "shorter than `retry_wait_min`"),
        (17, "two meanings"),
        (22, "without a code that means success"),
        (23, "one name in environment variables"),
        (27, "deadline must be longer than the connect_timeout"),
        (27, "borrow_wait must be shorter"),
        (27, "probe_timeout must be longer"),
        (27, "ledger field `txCode`"),
        (29, "must start with /api/"),
        (34, "framing cannot carry"),
        (38, "must start with /api/"),
        (40, "must be one of: inquiry, mutation"),
        (41, "no institution `no-bank`"),
        (42, "no layout `no-layout`"),
        (46, "must start with /api/"),
        (50, "framing cannot carry"),
        (1, "there is no client"),
    ] {
        let place = format!("bad.toml:{line}: ");
        assert!(told.lines().any(|one| one.contains(&place) && one.contains(words)), "{line} {words}:\n{told}");
    }
    assert!(!told.contains("short-planted-secret"));
    let broken = folder.path().join("broken.toml");
    std::fs::write(&broken, "[server\n").unwrap();
    assert!(err(&gwanmun(&["check", "--config", broken.to_str().unwrap()], b"")).contains("broken.toml:1:"));
}

#[test]
fn anothers_variable_that_is_no_text_does_not_matter_and_ours_is_refused_without_its_value() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gwanmun.toml");
    std::fs::write(&file, config_text()).unwrap();
    let korean = std::ffi::OsStr::from_bytes(b"\xb0\xa1planted");
    for (name, code) in [("SOMEBODYS", 0), ("GWANMUN_SERVER__LISTEN", 64)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gwanmun"));
        let output = command.args(["check", "--config"]).arg(&file).env(name, korean).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", err(&output));
        assert!(!err(&output).contains("planted"));
    }
    let key = gwanmun(&["keys", "new", "--client", "a\"\nrole = \"operator", "--role", "client"], b"");
    assert_eq!((key.status.code(), out(&key)), (Some(64), String::new()));
}

#[test]
fn an_environment_variable_that_names_no_setting_refuses_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gwanmun.toml");
    std::fs::write(&file, config_text()).unwrap();
    let check = |name: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gwanmun"));
        command.args(["check", "--config"]).arg(&file).env(name, value).output().unwrap()
    };
    for (name, value, code) in [
        ("GWANMUN_SERVER__LISTEN", "127.0.0.1:0", 0),
        ("GWANMUN_INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "9", 0),
        ("GWANMUN_INSTITUTION__CORE_BANKING__CONNECTIONS_MAX", "many", 64),
        ("GWANMUN_INSTITUTION__CORE_BANKING__CONECTIONS_MAX", "9", 64),
        ("GWANMUN_INSTITUTION__NO_BANK__CONNECTIONS_MAX", "9", 64),
        ("GWANMUN_SERVER_LISTEN", "127.0.0.1:0", 64),
        ("GWANMUN_ROUTE__NAME", "x", 64),
    ] {
        let output = check(name, value);
        assert_eq!(output.status.code(), Some(code), "{name}={value}: {}", err(&output));
        assert_eq!(code == 0, !err(&output).contains(name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_configuration_is_accepted_and_starts() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("gwanmun.example.toml");
    let check = gwanmun(&["check", "--config", example.to_str().unwrap()], b"");
    assert!(check.status.success(), "{}", err(&check));
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example).unwrap();
    let data = folder.path().join("data").display().to_string();
    let text = text.replace("\"gwanmun-data\"", &format!("{data:?}"));
    let file = folder.path().join("gwanmun.toml");
    std::fs::write(&file, text).unwrap();
    let process = Process::start(&file).await;
    assert_eq!(process.client().await.call(&get("/health/ready", "")).await.status, 200);

    // One data folder, one process.
    let second = Command::new(env!("CARGO_BIN_EXE_gwanmun")).args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(second.status.code(), Some(69));
    assert!(err(&second).contains("in use by another process"), "{}", err(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_answers_the_readmes_curl_and_shows_it_in_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_gwanmun"))
        .args(["demo", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--data"])
        .arg(folder.path().join("data"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.split("http://").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let announced: Vec<String> = lines.by_ref().take(6).map(Result::unwrap).collect();
    for key in ["demo-key-fintech-a", "demo-key-fintech-b", "demo-key-auditor", "demo-key-operator"] {
        assert!(announced.iter().any(|line| line.contains(key)), "{announced:?}");
    }
    let mut client = Client::connect(address).await;
    let answer =
        client.call(&post("/api/gateway/balance", "demo-key-fintech-a", r#"{"accountNo":"12345678901234"}"#)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["data"]["balance"], 6_879_445_000_i64);
    let page = client.call(&get("/api/ledger", "demo-key-auditor")).await.json();
    let row = &page["items"][0];
    assert_eq!(row["transactionId"], answer.transaction_id());
    assert_eq!((&row["status"], &row["accountMasked"]), (&"SUCCESS".into(), &"123456****1234".into()));
    demo.kill().unwrap();
    demo.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_is_corrupt_refuses_the_start_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_millis(1)).await;
    let config = write_config(folder.path(), &simulator, "");
    let process = Process::start(&config).await;
    let mut client = process.client().await;
    for number in 0..5 {
        assert_eq!(client.call(&crate::client::transfer(&format!("k{number}"), "1", 1)).await.status, 200);
    }
    process.kill();
    let journal = folder.path().join("data/journal");
    let first = std::fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[4_096 + 60] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    let start = Command::new(env!("CARGO_BIN_EXE_gwanmun")).args(["serve", "--config"]).arg(&config).output().unwrap();
    assert_eq!(start.status.code(), Some(69));
    assert!(err(&start).contains("journal segment 1 is corrupt at byte 4096"), "{}", err(&start));
}

#[tokio::test]
async fn a_journal_that_its_own_store_relies_on_is_not_retired() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = simulator(Duration::from_millis(1)).await;
    let config = write_config(folder.path(), &simulator, "");
    Process::start(&config).await.kill();
    let url = format!("sqlite:{}/ledger.sqlite", folder.path().join("data").display());
    let database = sqlx::SqlitePool::connect(&url).await.unwrap();
    let journal: Vec<u8> =
        sqlx::query_scalar("SELECT journal_id FROM instance_lease").fetch_one(&database).await.unwrap();
    database.close().await;
    let retire = |journal: &str| {
        let arguments = ["ledger", "retire", journal, "--config"];
        Command::new(env!("CARGO_BIN_EXE_gwanmun")).args(arguments).arg(&config).output().unwrap()
    };
    let refused = retire(&hex::encode(journal));
    assert_eq!(refused.status.code(), Some(65), "{}", err(&refused));
    assert!(err(&refused).contains("start its gateway"), "{}", err(&refused));
    assert_eq!(retire(&"0".repeat(32)).status.code(), Some(65), "one that nobody knows");
    drop(Process::start(&config).await);
}

#[test]
fn a_debug_print_of_a_configuration_shows_no_secret() {
    let text = format!(
        "[ledger]\nstore = \"postgres\"\npostgres_url = \"postgres://u:planted-password@h/d\"\nsearch_key = \"{}\"\n\
         [redis]\nurl = \"redis://u:planted-password@h/0\"\n[budget]\npostgres_url = \"postgres://u:planted-password@h/d\"\n{}",
        "planted-search-key".repeat(2),
        crate::harness::config_text()
            .replace("[institution.core-banking]\n", "[institution.core-banking]\nbudget_key = \"planted-password\"\n")
    );
    let config = gwanmun::config::Config::from_text("t", &text, std::path::Path::new("."), &[]).unwrap();
    let shown = format!("{config:?}");
    let clock = gwanmun::clock::Clock::system().unwrap();
    let lookup = std::sync::Arc::new(gwanmun::lookup::SystemLookup);
    let redis = config.shared.redis.as_ref().unwrap().reveal();
    let redis =
        gwanmun::redis_store::RedisStore::new(redis, std::sync::Arc::clone(&lookup) as _, clock.clone()).unwrap();
    let slots = config.shared.slots.as_ref().unwrap().reveal();
    let slots = gwanmun::budget::SlotStore::new(slots, config.shared.slot_store, lookup, clock).unwrap();
    let shown = format!("{shown} {redis:?} {slots:?}");
    assert!(!shown.contains("planted-password") && !shown.contains("planted-search"), "a secret is shown");
    assert!(!shown.contains(&format!("{:?}", b"planted-search")[1..20]), "a secret is shown as bytes");
}

#[test]
fn what_is_shared_is_checked_too_each_with_its_line() {
    let text = crate::harness::config_text();
    let with =
        |lines: &str| text.replace("[institution.core-banking]\n", &format!("[institution.core-banking]\n{lines}"));
    let top = |lines: &str| format!("{lines}\n{text}");
    let route = |lines: &str| {
        text.replacen(
            "account = \"accountNo\"\ndeadline = \"8s\"\n",
            &format!("account = \"accountNo\"\ndeadline = \"8s\"\n{lines}"),
            1,
        )
    };
    for (text, words) in [
        (with("budget = \"memory\"\n"), "needs a `budget_limit`"),
        (with("budget = \"redis\"\nbudget_limit = 5\n"), "a `url` in [redis] is required"),
        (with("budget = \"postgres\"\nbudget_limit = 5\n"), "a `postgres_url` in [budget] or [ledger] is required"),
        (with("budget = \"mysql\"\nbudget_limit = 5\n"), "must be one of: off, memory, redis, postgres"),
        (with("budget_window = \"50ms\"\n"), "must be shorter than `budget_window`"),
        (with("budget_window = \"2s\"\n"), "may be 1s at most"),
        (with("budget_max_wait = \"8s\"\n"), "budget_max_wait must be shorter than the deadline"),
        (with("budget_classes = [\"inquiry:1\"]\n"), "name:priority:floor"),
        (with("budget_classes = [\"inquiry:1:60\", \"mutation:2:60\"]\n"), "more than 100 percent"),
        (with("budget_classes = [\"inquiry:1:1\", \"inquiry:2:1\"]\n"), "have one name"),
        (with("budget_classes = [\"mutation:1:1\"]\n"), "have no `inquiry`"),
        (route("budget_class = \"unheard-of\"\n"), "have no `unheard-of`"),
        (route("cache_grace = \"1s\"\n"), "needs a `cache_ttl`"),
        (top("[client_limit]\nstore = \"redis\"\n"), "a `url` in [redis] is required"),
        (top("[cache]\nstore = \"redis\"\n"), "a `url` in [redis] is required"),
        (top("[redis]\nurl = \"rediss://planted-store-secret@h/0\"\n"), "there is no TLS to Redis"),
        (top("[budget]\npostgres_url = \"planted-store-secret\"\n"), "must be postgres://"),
        (top("[budget]\npostgres_url = \"postgres://u:planted-store-secret@h/d?colour=red\"\n"), "must be postgres://"),
    ] {
        let read = gwanmun::config::Config::from_text("t.toml", &text, std::path::Path::new("."), &[]);
        let told: Vec<_> = read.err().into_iter().flatten().map(|problem| problem.to_string()).collect();
        assert!(told.iter().any(|one| one.starts_with("t.toml:") && one.contains(words)), "{words}: {told:?}");
        assert!(told.iter().all(|one| !one.contains("planted")), "{told:?}");
    }
}
