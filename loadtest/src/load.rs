//! Load: closed (so many connections, each with its next request as soon as it has its answer) and open (a constant arrival rate,
//! latency counted from the time at which a request should have left, so that a stall can't hide).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Failed;
use crate::client::Client;
use crate::direct::Line;
use hdrhistogram::Histogram;

/// Makes the bytes of a request from its number.
pub(crate) type Requests = Arc<dyn Fn(u64) -> Vec<u8> + Send + Sync>;

/// Who is called, and how.
#[derive(Clone)]
pub(crate) enum Target {
    /// Over HTTP.
    Http(SocketAddr, Requests),
    /// The simulator itself, with the bank's own messages.
    Direct(SocketAddr),
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Latency in microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Answers by status and code.
    pub(crate) by_name: BTreeMap<String, u64>,
    pub(crate) took: Duration,
    /// Requests that found no connection free when they were due, and were not sent.
    pub(crate) dropped: u64,
    /// The furthest that the generator itself was behind its schedule: its tail can't be trusted when this is much.
    pub(crate) behind: Duration,
}

/// Up to a minute in microseconds, to three digits. It has its bounds from the start: recording what is beyond them saturates, and one
/// that grows by itself does not grow then.
pub(crate) fn histogram() -> Result<Histogram<u64>, Failed> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}

impl Outcome {
    fn new() -> Result<Self, Failed> {
        let latencies = histogram()?;
        Ok(Self { latencies, by_name: BTreeMap::new(), took: Duration::ZERO, dropped: 0, behind: Duration::ZERO })
    }

    fn add(&mut self, part: Self) -> Result<(), Failed> {
        self.latencies.add(part.latencies)?;
        for (name, count) in part.by_name {
            *self.by_name.entry(name).or_default() += count;
        }
        self.dropped += part.dropped;
        self.behind = self.behind.max(part.behind);
        Ok(())
    }

    fn note(&mut self, name: String, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latencies.saturating_record(micros);
        *self.by_name.entry(name).or_default() += 1;
    }

    pub(crate) fn answered(&self) -> u64 {
        self.by_name.values().sum()
    }

    pub(crate) fn good(&self) -> u64 {
        self.by_name.get("200").copied().unwrap_or_default()
    }

    /// Good answers a second.
    pub(crate) fn rate(&self) -> f64 {
        to_f64(self.good()) / self.took.as_secs_f64()
    }

    /// Latency at a quantile in milliseconds.
    pub(crate) fn at(&self, quantile: f64) -> f64 {
        to_f64(self.latencies.value_at_quantile(quantile)) / 1_000.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people; counts this large do not occur")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// A connection of either kind.
enum Wire {
    Http(Client, Requests),
    Direct(Line),
}

const BROKEN: &str = "broken connection";

impl Wire {
    fn connect(target: &Target) -> io::Result<Self> {
        Ok(match target {
            Target::Http(address, requests) => Self::Http(Client::connect(*address)?, Arc::clone(requests)),
            Target::Direct(address) => Self::Direct(Line::connect(*address)?),
        })
    }

    /// Calls once, and connects anew when the connection broke.
    fn call(&mut self, number: u64, target: &Target) -> io::Result<String> {
        let name = match self {
            Self::Http(client, requests) => client.call(&requests(number)).map(|answer| answer.name()),
            Self::Direct(line) => line.balance(number).map(|()| "200".to_owned()),
        };
        name.or_else(|_| {
            *self = Self::connect(target)?;
            Ok(BROKEN.to_owned())
        })
    }
}

/// No two requests of a run are the same.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The number of the next request.
pub(crate) fn next_number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Connections that were made before anything is measured.
pub(crate) struct Connections(Vec<Wire>);

impl Connections {
    pub(crate) fn to(target: &Target, count: usize) -> Result<Self, Failed> {
        Ok(Self((0..count).map(|_| Wire::connect(target)).collect::<io::Result<_>>()?))
    }
}

/// Runs one thread a connection, all at once, and tells each when that was: connecting is no part of it.
fn on_each(
    wires: &mut Connections,
    run: impl Fn(&mut Wire, &mut Outcome, Instant) -> io::Result<()> + Sync,
) -> Result<Outcome, Failed> {
    let began = Instant::now();
    let mut all = Outcome::new()?;
    std::thread::scope(|scope| {
        let run = &run;
        let start = |wire| {
            scope.spawn(move || {
                let mut outcome = Outcome::new()?;
                run(wire, &mut outcome, began)?;
                Ok::<_, Failed>(outcome)
            })
        };
        let threads: Vec<_> = wires.0.iter_mut().map(start).collect();
        for thread in threads {
            all.add(thread.join().map_err(|_| "a thread of the generator panicked")??)?;
        }
        Ok::<_, Failed>(())
    })?;
    all.took = began.elapsed();
    Ok(all)
}

/// Each of so many connections calls again as soon as it is answered.
pub(crate) fn closed(target: &Target, connections: usize, time: Duration) -> Result<Outcome, Failed> {
    on_each(&mut Connections::to(target, connections)?, |wire, outcome, began| {
        let end = began + time;
        let mut now = Instant::now();
        while now < end {
            let name = wire.call(next_number(), target)?;
            let done = Instant::now();
            outcome.note(name, done - now);
            now = done;
        }
        Ok(())
    })
}

/// Like [`open`] and dropping nothing, telling of each answer whether it was good and how long it took in microseconds from the moment
/// it left: under overload, what is refused and what is accepted are looked at apart.
pub(crate) fn open_told(
    target: &Target,
    connections: usize,
    rate: f64,
    time: Duration,
    tell: impl Fn(bool, u64) + Sync,
) -> Result<Outcome, Failed> {
    arrive((target, &mut Connections::to(target, connections)?), (rate, time), Duration::MAX, tell)
}

/// Requests leave at a constant rate, whatever the answers do, over so many connections. A connection that is still busy when a
/// request is due sends it late, and the lateness counts; one that is more than `patience` late is dropped.
pub(crate) fn open(
    target: &Target,
    connections: usize,
    rate: f64,
    time: Duration,
    patience: Duration,
) -> Result<Outcome, Failed> {
    open_over(target, &mut Connections::to(target, connections)?, rate, time, patience)
}

/// The same over connections that are there.
pub(crate) fn open_over(
    target: &Target,
    connections: &mut Connections,
    rate: f64,
    time: Duration,
    patience: Duration,
) -> Result<Outcome, Failed> {
    arrive((target, connections), (rate, time), patience, |_, _| {})
}

fn arrive(
    (target, connections): (&Target, &mut Connections),
    (rate, time): (f64, Duration),
    patience: Duration,
    tell: impl Fn(bool, u64) + Sync,
) -> Result<Outcome, Failed> {
    let (next, all) = (AtomicU64::new(0), (rate * time.as_secs_f64()).round());
    on_each(connections, |wire, outcome, began| {
        loop {
            let nth = to_f64(next.fetch_add(1, Ordering::Relaxed));
            if nth >= all {
                return Ok(());
            }
            let due = began + Duration::from_secs_f64(nth / rate);
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
                outcome.behind = outcome.behind.max(due.elapsed());
            } else if due.elapsed() > patience {
                outcome.dropped += 1;
                continue;
            }
            let left = Instant::now();
            let name = wire.call(next_number(), target)?;
            tell(name == "200", u64::try_from(left.elapsed().as_micros()).unwrap_or(u64::MAX));
            outcome.note(name, due.elapsed());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_of_seconds_is_told_as_it_is() {
        let mut outcome = Outcome::new().unwrap();
        for millis in [1, 2_500, 3_000] {
            outcome.note("200".to_owned(), Duration::from_millis(millis));
        }
        assert!((outcome.at(0.5) - 2_500.0).abs() < 3.0, "{}", outcome.at(0.5));
        assert!((outcome.at(1.0) - 3_000.0).abs() < 4.0, "{}", outcome.at(1.0));
    }
}
