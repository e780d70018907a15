//! The gateway beside its peers, in shuffled rounds: throughput and CPU time a call at saturation, latency and CPU time at a constant
//! rate. Ratios are paired inside a round, because the machine is not the same from one to the next.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::Failed;
use crate::client::balance;
use crate::figures::Spread;
use crate::load::{self, Connections, Outcome, Requests, Target, to_f64};
use crate::place::{Place, Served};

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// Connections at saturation.
    pub(crate) connections: usize,
    /// Calls a second of the constant rate; none, and only saturation is looked at.
    pub(crate) rate: Option<f64>,
}

/// The same, as the command line has it.
#[derive(Debug, clap::Args)]
pub(crate) struct Pace {
    /// Rounds, in each of which everybody is measured once, in another order.
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Milliseconds of one measurement.
    #[arg(long, default_value_t = 700)]
    slice_ms: u64,
    /// Connections at saturation.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Calls a second of the constant rate.
    #[arg(long, default_value_t = 4_000.0)]
    rate: f64,
}

impl Pace {
    pub(crate) fn plan(&self) -> Plan {
        let Self { rounds, slice_ms, connections, rate } = *self;
        Plan { rounds, slice: Duration::from_millis(slice_ms), connections, rate: Some(rate) }
    }
}

/// Somebody who is measured.
pub(crate) struct Contender {
    name: &'static str,
    target: Target,
    served: Option<Served>,
    /// Whether work goes on when the last call is answered.
    settles: bool,
    _behind: Option<Served>,
}

/// What one contender showed, round by round.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) throughput: Vec<f64>,
    /// CPU microseconds a call at saturation, of its own process.
    pub(crate) cpu_saturated: Vec<f64>,
    /// The same at the constant rate.
    pub(crate) cpu_at_rate: Vec<f64>,
    /// Milliseconds at the constant rate.
    pub(crate) p50_at_rate: Vec<f64>,
    pub(crate) p99_at_rate: Vec<f64>,
    /// The furthest that the generator was behind its own schedule, in milliseconds.
    pub(crate) behind: f64,
}

/// All of them by name.
pub(crate) type Compared = BTreeMap<&'static str, Series>;

impl Contender {
    /// A gateway.
    pub(crate) fn of(name: &'static str, served: Served) -> Self {
        Self::calling(name, served, Arc::new(balance))
    }

    /// A gateway that is called with these requests.
    pub(crate) fn calling(name: &'static str, served: Served, requests: Requests) -> Self {
        let target = Target::Http(served.address, requests);
        Self { name, target, served: Some(served), settles: true, _behind: None }
    }

    /// Those who do less: the bare handler, and the direct client.
    pub(crate) fn lesser(place: &Place) -> Result<[Self; 2], Failed> {
        let target = Target::Direct(place.balances());
        let direct = Self { name: "direct", target, served: None, settles: false, _behind: None };
        Ok([Self { settles: false, ..Self::of("bare", place.bare()?) }, direct])
    }

    /// So many connections to it.
    pub(crate) fn connect(&self, count: usize) -> Result<Connections, Failed> {
        Connections::to(&self.target, count)
    }

    /// nginx before an upstream.
    pub(crate) fn nginx(place: &Place) -> Result<Self, Failed> {
        let (nginx, upstream) = place.nginx()?;
        Ok(Self { settles: false, _behind: Some(upstream), ..Self::of("nginx", nginx) })
    }
}

/// Runs the plan with a gateway, its peers, and perhaps another build.
pub(crate) fn run(plan: Plan, settings: &[(&str, &str)], before: Option<&Path>) -> Result<Compared, Failed> {
    let place = Place::new(&[])?;
    let mut contenders = vec![Contender::of("gateway", place.gateway("gateway", settings)?), Contender::nginx(&place)?];
    contenders.extend(Contender::lesser(&place)?);
    if let Some(program) = before {
        contenders.push(Contender::of("before", place.gateway_of(program, "before", settings)?));
    }
    among(plan, &contenders)
}

/// Runs the plan with these.
pub(crate) fn among(plan: Plan, contenders: &[Contender]) -> Result<Compared, Failed> {
    let mut compared = Compared::new();
    for contender in contenders {
        load::closed(&contender.target, plan.connections, Duration::from_millis(300))?;
        compared.insert(contender.name, Series::default());
    }
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    for _ in 0..plan.rounds {
        fastrand::shuffle(&mut order);
        for contender in order.iter().filter_map(|nth| contenders.get(*nth)) {
            let Some(series) = compared.get_mut(contender.name) else { continue };
            let (outcome, cpu) = watched(contender, || load::closed(&contender.target, plan.connections, plan.slice))?;
            series.throughput.push(outcome.rate());
            series.cpu_saturated.push(cpu);
            if let Some(rate) = plan.rate {
                let patience = Duration::from_secs(1);
                let run = || load::open(&contender.target, 16, rate, plan.slice, patience);
                let (outcome, cpu) = watched(contender, run)?;
                series.cpu_at_rate.push(cpu);
                series.p50_at_rate.push(outcome.at(0.5));
                series.p99_at_rate.push(outcome.at(0.99));
                series.behind = series.behind.max(outcome.behind.as_secs_f64() * 1_000.0);
            }
        }
    }
    Ok(compared)
}

/// CPU microseconds a call at a constant rate, over connections that are there.
pub(crate) fn cost_at_rate(
    contender: &Contender,
    connections: &mut Connections,
    rate: f64,
    slice: Duration,
) -> Result<f64, Failed> {
    let run = || load::open_over(&contender.target, connections, rate, slice, Duration::from_secs(1));
    watched(contender, run).map(|(_, cost)| cost)
}

/// A gateway's rows reach its store up to 200 ms later: the load that made them pays for them, and not the next one.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);

/// Runs a load and says what it cost its contender: CPU microseconds a call.
fn watched(contender: &Contender, run: impl FnOnce() -> Result<Outcome, Failed>) -> Result<(Outcome, f64), Failed> {
    let cpu = || contender.served.as_ref().map(|served| served.process.cpu()).unwrap_or_default();
    let before = cpu();
    let outcome = run()?;
    if outcome.good() < outcome.answered() {
        return Err(format!("{}: not every call was answered well: {:?}", contender.name, outcome.by_name).into());
    }
    if contender.settles {
        std::thread::sleep(SETTLE);
    }
    let spent = cpu().saturating_sub(before);
    let each = spent.as_secs_f64() * 1e6 / to_f64(outcome.answered().max(1));
    Ok((outcome, each))
}

/// One contender's figure over another's.
pub(crate) fn ratio(compared: &Compared, over: &str, under: &str, figure: fn(&Series) -> &Vec<f64>) -> Spread {
    match (compared.get(over), compared.get(under)) {
        (Some(over), Some(under)) => Spread::of_ratios(figure(over), figure(under)),
        _ => Spread::default(),
    }
}

/// What the gateway adds to the direct client's p50, over what nginx adds.
pub(crate) fn added(compared: &Compared) -> Spread {
    let series = |name: &str| compared.get(name).map(|series| series.p50_at_rate.clone()).unwrap_or_default();
    let (gateway, nginx, direct) = (series("gateway"), series("nginx"), series("direct"));
    let over = |own: &[f64]| -> Vec<f64> { own.iter().zip(&direct).map(|(own, direct)| own - direct).collect() };
    Spread::of_ratios(&over(&gateway), &over(&nginx))
}
