//! The REST contract: what answers look like, who may call what, and in which order it is said.

use serde_json::json;

use crate::client::{AUDITOR, CLIENT, OPERATOR, OTHER_CLIENT, balance, get, post, transfer};
use crate::harness::TestGateway;

#[tokio::test(flavor = "multi_thread")]
async fn each_route_answers_with_the_replys_fields_and_no_account() {
    let gateway = TestGateway::start(&[]).await;
    let answer = gateway.call(&balance("12345678901234")).await;
    let body = answer.json();
    assert_eq!(body["status"], "SUCCESS");
    assert_eq!(body["transactionId"], answer.transaction_id());
    assert_eq!(
        body["data"],
        json!({"balance": 6_879_445_000_i64, "responseCode": "0000", "responseMessage": "정상 처리되었습니다"})
    );
    assert!(body["elapsedMs"].is_f64());
    assert_eq!(answer.headers["content-type"], "application/json");
    for header in ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "x-correlation-id"] {
        assert!(answer.headers.contains_key(header), "{header}");
    }
    for path in ["/api/gateway/history", "/api/history"] {
        let asked = r#"{"accountNo":"12345678901234","fromDate":"20260601","toDate":"20260630","reqCount":2}"#;
        let data = gateway.call(&post(path, CLIENT, asked)).await.json()["data"].clone();
        assert_eq!(data["recordCount"], 2);
        assert_eq!(data["records"][1]["summary"], "카드결제");
        assert!(data.get("totalLength").is_none() && data.get("accountNo").is_none());
    }
    let data = gateway.call(&transfer("a", "12345678901234", 5_000)).await.json()["data"].clone();
    assert_eq!(data["balanceAfter"], 6_879_440_000_i64);
    let data = gateway.call(&post("/api/gateway/exchange-rate", CLIENT, r#"{"currency":"USD"}"#)).await.json();
    assert_eq!(data["data"]["baseRate"], 13_955_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correlation_id_is_kept_when_it_is_a_good_one_and_made_when_not() {
    let gateway = TestGateway::start(&[]).await;
    let with = |id: &str| balance("1").replacen("\r\n", &format!("\r\nx-correlation-id: {id}\r\n"), 1);
    let answer = gateway.call(&with("order-17.a_B")).await;
    assert_eq!(answer.headers["x-correlation-id"], "order-17.a_B");
    let row = gateway.get(&format!("/api/ledger/{}", answer.transaction_id()), CLIENT).await;
    assert_eq!(row["correlationId"], "order-17.a_B");
    for bad in ["has space", "semi;colon", &"x".repeat(65)] {
        let made = gateway.call(&with(bad)).await.headers["x-correlation-id"].clone();
        assert_eq!((made.len(), made.as_bytes()[14]), (36, b'7'), "a UUIDv7: {made}");
    }
    let refused = gateway.call(&get("/api/nothing", "")).await;
    assert_eq!(refused.json()["correlationId"], refused.headers["x-correlation-id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_korean_and_english_on_request() {
    let gateway = TestGateway::start(&[]).await;
    let wrong = post("/api/gateway/balance", CLIENT, r#"{"accountNo":"12-34"}"#);
    let korean = gateway.call(&wrong).await.json();
    assert_eq!(korean["detail"], "accountNo: 숫자만 허용됩니다");
    assert_eq!(korean["field"], "accountNo");
    let english = gateway.call(&wrong.replacen("\r\n", "\r\naccept-language: en-GB, ko;q=0.5\r\n", 1)).await.json();
    assert_eq!(english["detail"], "accountNo: must be ASCII digits only");
    assert_eq!(english["code"], korean["code"]);
    assert!(!english.to_string().contains("12-34"), "the value is not repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_declines_is_quoted() {
    let gateway = TestGateway::start(&[]).await;
    let body = gateway.call(&balance("0")).await.json();
    assert_eq!((&body["hostCode"], &body["hostMessage"]), (&"0001".into(), &"없는 계좌입니다".into()));
    assert_eq!(body["ledgerStatus"], "FAILED");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_open_what_their_role_may_and_authentication_comes_first() {
    let gateway = TestGateway::start(&[]).await;
    let inquiry = |key: &str| balance("1").replace(CLIENT, key);
    for (request, status) in [
        (get("/api/ledger", ""), 401),
        (get("/api/nothing", "wrong"), 401),
        (get("/api/nothing", CLIENT), 404),
        (inquiry(AUDITOR), 403),
        (inquiry(OPERATOR), 403),
        (inquiry(OTHER_CLIENT), 200),
        (get("/api/gateway/balance", AUDITOR), 403),
        (get("/api/gateway/balance", CLIENT), 405),
        (get("/api/ledger", CLIENT), 200),
        (get("/api/ledger/summary", CLIENT), 403),
        (get("/api/ledger/summary", AUDITOR), 200),
        (post("/api/ledger/search", CLIENT, r#"{"accountNo":"1"}"#), 403),
        (post("/api/ledger/search", AUDITOR, r#"{"accountNo":"1"}"#), 200),
        (post("/api/ledger", AUDITOR, "{}"), 405),
        (get("/api/circuit/stats", AUDITOR), 403),
        (get("/api/pool/stats", CLIENT), 403),
        (post("/api/pool/stats", CLIENT, "{}"), 403),
        (post("/api/pool/stats", OPERATOR, "{}"), 405),
        (get("/api/pool/stats", OPERATOR), 200),
        (get("/metrics", ""), 401),
        (get("/metrics", AUDITOR), 403),
        (get("/metrics", OPERATOR), 200),
        (get("/health/live", ""), 200),
        (get("/health/ready", ""), 200),
        (get("/elsewhere", ""), 404),
    ] {
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, status, "{}: {}", request.lines().next().unwrap(), answer.text);
    }
    let allowed = gateway.call(&get("/api/gateway/balance", CLIENT)).await.headers["allow"].clone();
    assert_eq!(allowed, "POST");
    let allowed = gateway.call(&post("/api/ledger", AUDITOR, "{}")).await.headers["allow"].clone();
    assert!(allowed.contains("GET") && !allowed.contains("POST"), "{allowed}");
    assert_eq!(gateway.call(&get("/api/ledger", "")).await.headers["www-authenticate"], "Bearer");
    let refused = gateway.call(&get("/metrics", OPERATOR)).await.text;
    assert!(refused.contains("gwanmun_refused_total{code=\"UNAUTHENTICATED\"} 4"), "{refused}");
    let bearer = balance("1").replace(&format!("x-api-key: {CLIENT}"), &format!("authorization: bearer {CLIENT}"));
    assert_eq!(gateway.call(&bearer).await.status, 200);
}
