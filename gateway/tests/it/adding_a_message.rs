//! Follows docs/ADDING_A_MESSAGE.md to the letter: takes its files out of the page, which are not in the tree, and does a
//! round trip.

use std::path::Path;
use std::time::Duration;

use codec::{Catalog, Record, Value, decode, encode};
use gwanmun::app::App;
use gwanmun::config::Config;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{AUDITOR, CLIENT, Client, get, post};
use crate::command_line::{err, gwanmun, out};
use crate::harness::{config_text, simulator, start_logging};
use crate::scripted_host::ScriptedHost;

/// The fenced block behind the line that names `title`.
fn block(page: &str, title: &str) -> String {
    let behind = page.split_once(&format!("`{title}`")).unwrap_or_else(|| panic!("no `{title}`")).1;
    let fenced = behind.split_once("```").unwrap().1;
    let (_, body) = fenced.split_once('\n').unwrap();
    body.split_once("```").unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_file_and_a_route_entry_make_a_new_message_with_no_rust_edited() {
    start_logging();
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ADDING_A_MESSAGE.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("layouts")).unwrap();
    for file in ["layouts/point-request.toml", "layouts/point-reply.toml"] {
        std::fs::write(folder.path().join(file), block(&page, file)).unwrap();
    }
    let catalog = Catalog::from_folder(&folder.path().join("layouts")).unwrap();
    let (request, reply) = (catalog.get("point-request").unwrap(), catalog.get("point-reply").unwrap());

    // A host that speaks nothing but the new message.
    let (request_layout, reply_layout) = (request.clone(), reply.clone());
    let host = ScriptedHost::start(move |mut stream, _| {
        let (request_layout, reply_layout) = (request_layout.clone(), reply_layout.clone());
        async move {
            let mut frame = vec![0; 4 + request_layout.header_length()];
            while stream.read_exact(&mut frame).await.is_ok() {
                let asked = decode(&request_layout, &frame[4..]).unwrap();
                let answer = Record::new(&reply_layout)
                    .with("tranId", asked.get("tranId"))
                    .unwrap()
                    .with("memberNo", asked.get("memberNo"))
                    .unwrap()
                    .with("points", Value::Number(12_500))
                    .unwrap()
                    .with("grade", Value::Text("골드"))
                    .unwrap()
                    .with("responseCode", Value::Text("0000"))
                    .unwrap();
                let mut bytes = format!("{:04}", reply_layout.header_length()).into_bytes();
                encode(&answer, &mut bytes).unwrap();
                stream.write_all(&bytes).await.unwrap();
            }
        }
    })
    .await;

    let (whole, message) = (block(&page, "whole.json"), block(&page, "message.hex"));
    let layouts = folder.path().join("layouts");
    let layouts = layouts.to_str().unwrap();
    let encoded = gwanmun(&["encode", "point-request", "--layouts", layouts], whole.as_bytes());
    assert_eq!(out(&encoded), message, "{}", err(&encoded));
    let decoded = gwanmun(&["decode", "point-request", "--json", "--layouts", layouts], message.as_bytes());
    assert_eq!(serde_json::from_str::<Json>(&out(&decoded)).unwrap()["memberNo"], "000000004711");
    let file = folder.path().join("gwanmun.toml");
    std::fs::write(&file, config_text() + &block(&page, "gwanmun.toml")).unwrap();
    let check = gwanmun(&["check", "--config", file.to_str().unwrap()], b"");
    assert!(check.status.success(), "{}", err(&check));

    let entry = block(&page, "gwanmun.toml").replace("points.bank.example:9094", &host.address.to_string());
    let text = config_text() + &entry;
    let data = folder.path().join("data").display().to_string();
    let variables = [("GWANMUN_LEDGER__DATA".to_owned(), data)];
    let config = Config::from_text("gwanmun.toml", &text, folder.path(), &variables).unwrap();
    let app = App::start(config).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(app.serve(listener, tokio_util::sync::CancellationToken::new()));
    let _bank = simulator(Duration::from_millis(1)).await;

    let body = block(&page, "request.json");
    let mut client = Client::connect(address).await;
    let answer = client.call(&post("/api/gateway/points", CLIENT, &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let wanted: Json = serde_json::from_str(&block(&page, "data.json")).unwrap();
    assert_eq!(answer.json()["data"], wanted);
    let row = client.call(&get(&format!("/api/ledger/{}", answer.transaction_id()), AUDITOR)).await.json();
    assert_eq!((&row["txCode"], &row["status"]), (&"PT01".into(), &"SUCCESS".into()));
    serving.abort();
}
