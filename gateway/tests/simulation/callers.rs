//! Callers who transfer and ask for balances, try again with the same key when they were told to or heard nothing, sometimes hang
//! up, and remember everything that they were told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::world::{KEYS, World};

/// What a caller was told.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
    pub(crate) replayed: bool,
}

impl Told {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One transfer that somebody wants to have made once.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) client: usize,
    pub(crate) body: String,
    pub(crate) told: Vec<Told>,
}

/// What all callers remember.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) transfers: BTreeMap<String, Wanted>,
    pub(crate) inquiries: Vec<Told>,
}

/// The deadline of every route, and 50 ms; a timer rounds up to a millisecond.
const LONGEST: Duration = Duration::from_millis(2_052);

const CALLERS: u64 = 5;
const CALLS: u64 = 7;

pub(crate) async fn call_for_a_while(world: &Arc<World>) {
    world.anyone().await;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let world = Arc::clone(world);
        callers.spawn(async move {
            for nth in 0..CALLS {
                tokio::time::sleep(Duration::from_millis(world.roll(900))).await;
                if world.roll(4) == 0 {
                    inquire(&world).await;
                } else {
                    transfer(&world, &format!("{caller}-{nth}")).await;
                }
            }
        });
    }
    callers.join_all().await;
}

/// A healthy bank is asked again by every gateway in bounded time: its circuits are closed.
pub(crate) async fn every_circuit_closes(world: &Arc<World>) {
    for (nth, seat) in world.seats.iter().enumerate() {
        for (path, institution) in [("balance", "core-banking"), ("exchange-rate", "core-transfer")] {
            let body = if path == "balance" { r#"{"accountNo":"77"}"# } else { r#"{"currency":"USD"}"# };
            let mut last = None;
            for _ in 0..60 {
                let Some(running) = seat.running() else { break };
                let request = Request::post(format!("/api/gateway/{path}"))
                    .header("x-api-key", KEYS[0].2)
                    .header("content-type", "application/json")
                    .body(Body::from(body))
                    .unwrap();
                last = Some(running.entrance.answer(request).await.status().as_u16());
                if last == Some(200) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            let good = last == Some(200) || seat.running().is_none();
            assert!(good, "seed {}: {institution} of seat {nth} is not asked again: {last:?}", world.seed);
        }
    }
}

/// Asks for one more time what became of each transfer.
pub(crate) async fn repeat_every_key(world: &Arc<World>) {
    let keys: Vec<String> = world.seen.lock().unwrap().transfers.keys().cloned().collect();
    for key in keys {
        let mut last = None;
        // One that runs anew may meet a line that was to break, and then is in doubt until it is resolved.
        for _ in 0..60 {
            let told = once(world, &key, None).await;
            let status = told.as_ref().map(|told| told.status);
            last = told;
            if !matches!(status, None | Some(409 | 503 | 504)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let last = last.unwrap_or_else(|| panic!("seed {}: {key} gets no answer", world.seed));
        let is_manual = || {
            let rows = world.store.all_rows();
            let row = rows.iter().find(|row| row.row.facts.id.as_str() == last.id);
            row.is_some_and(|row| row.resolved.state == gwanmun::ledger::Resolution::Manual)
        };
        let ended = matches!(last.status, 200 | 422 | 502) || (last.status == 504 && is_manual());
        assert!(ended, "seed {}: {key} is stuck: {} {}", world.seed, last.status, last.json());
    }
}

async fn inquire(world: &World) {
    // One that no money moves on, so that its balance tells whose answer this is.
    let account = (1_000 + world.roll(500)).to_string();
    let body = format!(r#"{{"accountNo":"{account}"}}"#);
    if let Some(told) = post(world, "/api/gateway/balance", KEYS[0].2, None, &body, None).await {
        if told.status == 200 {
            let balance = mock_core_banking::opening_balance(&account);
            assert_eq!(told.json()["data"]["balance"].as_i64(), balance, "seed {}: another one's reply", world.seed);
        }
        world.seen.lock().unwrap().inquiries.push(told);
    }
}

async fn transfer(world: &World, key: &str) {
    let (from, to) = (1 + world.roll(4), 5 + world.roll(3));
    let amount = if world.roll(12) == 0 { 99_000_000_000 } else { 1 + world.roll(1_000) };
    let body =
        format!(r#"{{"fromAccount":"{from}","toAccount":"{to}","amount":{amount},"payeeName":"홍길동","memo":"m"}}"#);
    let client = usize::try_from(world.roll(2)).unwrap();
    let wanted = Wanted { client, body, told: Vec::new() };
    world.seen.lock().unwrap().transfers.insert(key.to_owned(), wanted);
    for _ in 0..4 {
        let leaves = (world.roll(8) == 0).then(|| Duration::from_micros(world.roll(30_000)));
        // Twice at once, now and then.
        let status = if world.roll(6) == 0 {
            let (first, second) = tokio::join!(once(world, key, leaves), once(world, key, None));
            first.or(second).map(|told| told.status)
        } else {
            once(world, key, leaves).await.map(|told| told.status)
        };
        match status {
            Some(200 | 422 | 502) if world.roll(3) != 0 => return,
            Some(504) if world.roll(2) != 0 => return,
            _ => tokio::time::sleep(Duration::from_millis(world.roll(1_500))).await,
        }
    }
}

/// One call for a key; what it is told is remembered.
async fn once(world: &World, key: &str, leaves: Option<Duration>) -> Option<Told> {
    let wanted = world.seen.lock().unwrap().transfers[key].clone();
    let told = post(world, "/api/gateway/transfer", KEYS[wanted.client].2, Some(key), &wanted.body, leaves).await?;
    world.tell(|| format!("{key} is told {} {}{}", told.status, told.id, if told.replayed { " again" } else { "" }));
    let mut seen = world.seen.lock().unwrap();
    seen.transfers.get_mut(key).unwrap().told.push(told.clone());
    Some(told)
}

/// Calls some gateway. `None`: nothing was heard, because the gateway died, none was up, or the caller left.
async fn post(
    world: &World,
    path: &str,
    api_key: &str,
    key: Option<&str>,
    body: &str,
    leaves: Option<Duration>,
) -> Option<Told> {
    let nth = usize::try_from(world.roll(u64::try_from(world.seats.len()).unwrap())).unwrap();
    let running = world.seats[nth].running();
    let told = match running {
        None => None,
        Some(running) => {
            let mut request =
                Request::post(path).header("x-api-key", api_key).header("content-type", "application/json");
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            let request = request.body(Body::from(body.to_owned())).unwrap();
            let leave = async {
                match leaves {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            let began = world.store_clock.now();
            let answered = async {
                let response = running.entrance.answer(request).await;
                let took = world.store_clock.now() - began;
                assert!(took <= LONGEST, "seed {}: an answer took {took:?}", world.seed);
                read(response).await
            };
            tokio::select! {
                biased;
                () = running.life.dead.cancelled() => None,
                () = leave => None,
                // Whoever died on the way to an answer told it to nobody.
                told = answered => (!running.life.is_over()).then_some(told),
            }
        }
    };
    let kind = match told.as_ref().map(|told| told.status) {
        None => 0,
        Some(200) => 1,
        Some(503) => 3,
        Some(504) => 4,
        Some(_) => 2,
    };
    {
        let mut totals = world.totals.lock().unwrap();
        totals.answers[kind] += 1;
        totals.replayed += u64::from(told.as_ref().is_some_and(|told| told.replayed));
    }
    if told.is_none() {
        // As a caller would: not at once again.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    told
}

async fn read(response: axum::response::Response) -> Told {
    let (head, body) = response.into_parts();
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (id, replayed) = (header("x-transaction-id").unwrap_or_default(), header("idempotent-replayed").is_some());
    let status = head.status.as_u16();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Told { status, id, body, replayed }
}
