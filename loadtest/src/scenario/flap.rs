//! A host that dies and comes back under load: how often the circuit opens, what late results are worth, and how long it takes until
//! everybody is served again.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Failed;
use crate::client::{Client, balance, get};
use crate::load::{Target, open};
use crate::place::Place;
use crate::report::Report;

/// How often.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Deaths.
    #[arg(long, default_value_t = 5)]
    deaths: u32,
    /// Calls a second.
    #[arg(long, default_value_t = 2_000.0)]
    rate: f64,
}

const LATE: &str = r#"{"seed":1,"rules":[{"message":"0200","fault":"late","probability":1.0,"delayMs":20}]}"#;
const OPEN: Duration = Duration::from_secs(1);
const AWAY: Duration = Duration::from_secs(5);

struct Circuit {
    is_closed: bool,
    opened: u64,
    stale: u64,
    generation: u64,
}

fn look(client: &mut Client) -> Result<Circuit, Failed> {
    let stats = client.call_for_json(&get("/api/circuit/stats"))?;
    let circuit = stats.get("core-banking").ok_or("there is no such circuit")?;
    let count = |name: &str| circuit.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default();
    Ok(Circuit {
        is_closed: circuit.get("state").is_some_and(|state| state == "CLOSED"),
        opened: count("openedTotal"),
        stale: count("staleResultsTotal"),
        generation: count("generation"),
    })
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode, Failed> {
    // Late enough that calls are under way when the host dies.
    let mut place = Place::new(&["--faults", LATE])?;
    let settings =
        [("INSTITUTION__CORE_BANKING__BREAKER_OPEN", "1s"), ("INSTITUTION__CORE_BANKING__BREAKER_OPEN_MAX", "1s")];
    let gateway = place.gateway("gateway", &settings)?;
    let (target, stop) = (Target::Http(gateway.address, Arc::new(balance)), AtomicBool::new(false));
    let columns = ["death", "openings", "generations", "late results", "served again after ms"];
    let title =
        format!("A host that is away for {AWAY:?}, {} times, under {:.0} calls a second", plan.deaths, plan.rate);
    let mut report = Report::new("flap", title, &columns);
    let slowest = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = open(&target, 64, plan.rate, Duration::from_millis(500), Duration::from_secs(1)) {
                    eprintln!("loadtest: {error}");
                }
            }
        });
        let watched = watch(plan, &mut place, gateway.address, &mut report);
        stop.store(true, Ordering::Relaxed);
        watched
    })?;
    let mut client = Client::connect(gateway.address)?;
    let stale = look(&mut client)?.stale;
    report.note(format!(
        "{stale} late results in all; none changes a state (the breaker's unit tests and its interleavings show that)."
    ));
    report.write()?;
    // One open time with its jitter, a probe, and a slow machine's second.
    Ok(if slowest <= OPEN.mul_f64(1.1) + Duration::from_secs(1) && stale > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Lets the host die and come back, and looks; the longest time to recovery.
fn watch(
    plan: &Plan,
    place: &mut Place,
    address: std::net::SocketAddr,
    report: &mut Report,
) -> Result<Duration, Failed> {
    let mut client = Client::connect(address)?;
    let mut slowest = Duration::ZERO;
    for death in 1..=plan.deaths {
        std::thread::sleep(Duration::from_secs(1));
        let before = look(&mut client)?;
        // It dies, or it hangs: then its lines stay, and the calls on them end one after the other, long after the circuit opened.
        let hangs = death % 2 == 0;
        if hangs {
            place.silence_bank(true)?;
        } else {
            place.stop_bank();
        }
        std::thread::sleep(AWAY);
        if hangs {
            place.silence_bank(false)?;
        } else {
            place.start_bank()?;
        }
        let back = Instant::now();
        let after = loop {
            let now = look(&mut client)?;
            if now.is_closed && now.opened > before.opened {
                break now;
            }
            if back.elapsed() > Duration::from_secs(30) {
                return Err("the circuit does not close again".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = back.elapsed();
        slowest = slowest.max(took);
        report.row(vec![
            format!("{death}, {}", if hangs { "hangs" } else { "dies" }),
            (after.opened - before.opened).to_string(),
            (after.generation - before.generation).to_string(),
            (after.stale - before.stale).to_string(),
            took.as_millis().to_string(),
        ]);
    }
    Ok(slowest)
}
