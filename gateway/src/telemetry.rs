//! Metrics and logs. Owns the Prometheus recorder of one gateway (not a global one: two gateways in one process keep
//! apart) and the set-up of logging. Label values come from configuration and enums only, so their number is bounded
//! and no account, key or name can be one.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

const META: Metadata<'static> = Metadata::new("gwanmun", Level::INFO, None);

/// Latency buckets in seconds.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// The metrics of one gateway.
pub struct Telemetry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Telemetry")
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// A recorder with no metrics yet.
    #[must_use]
    pub fn new() -> Self {
        let matcher = Matcher::Suffix("_seconds".to_owned());
        // Buckets that are not empty are never refused.
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets_for_metric(matcher, &SECONDS).unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        Self { recorder, handle }
    }

    /// A counter; ask once and keep it.
    pub fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.recorder.register_counter(&key(name, labels), &META)
    }

    /// A gauge; ask once and keep it.
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, labels), &META)
    }

    /// A histogram; its name ends in `_seconds`. Ask once and keep it.
    pub fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.recorder.register_histogram(&key(name, labels), &META)
    }

    /// Everything in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Folds what histograms have gathered; call it now and then, or memory grows between two scrapes.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect::<Vec<_>>();
    Key::from_parts(name, labels)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to standard error, and makes panics log their place but never their text, which could hold a value.
/// Does nothing when logging was started before.
pub fn start_logging(format: LogFormat, level: tracing::Level) {
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(true);
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if started.is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(place, "panic");
        }));
    }
}
