//! The simulator by itself: `cargo run -p mock-core-banking`, on its well-known ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use mock_core_banking::{FaultSchedule, Port, Settings, Simulator};

/// A small bank that remembers, for trying a gateway against.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Address on which the four ports listen (9099, 9098, 9097, 9096).
    #[arg(long, default_value = "127.0.0.1")]
    host: Ipv4Addr,
    /// Where the control port listens; loopback only.
    #[arg(long, default_value = "127.0.0.1:9095")]
    control: SocketAddr,
    /// How long the slow accounts wait, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    delay_ms: u64,
    /// Faults from the start, as the JSON that the control port's /faults takes.
    #[arg(long, value_parser = parse_faults)]
    faults: Option<FaultSchedule>,
}

fn parse_faults(text: &str) -> Result<FaultSchedule, serde_json::Error> {
    serde_json::from_str(text)
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = Settings {
        base: Some(arguments.host),
        control: arguments.control,
        delay: Duration::from_millis(arguments.delay_ms),
        faults: arguments.faults.unwrap_or_default(),
        kernel_stamps: false,
    };
    let simulator = match Simulator::start(settings).await {
        Ok(simulator) => simulator,
        Err(error) => {
            eprintln!("mock-core-banking: {error}");
            return ExitCode::FAILURE;
        }
    };
    for port in Port::ALL {
        println!("{:<16} {}", port.institution(), simulator.address(port));
    }
    println!("{:<16} http://{}", "control", simulator.control());
    if tokio::signal::ctrl_c().await.is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
