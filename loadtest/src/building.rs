//! Builds of the gateway that a scenario makes for itself, each in a folder of its own under `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failed;

/// The workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What stands between flags in `CARGO_ENCODED_RUSTFLAGS`.
const SEPARATOR: &str = "\x1f";

/// A folder under `target/`.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(ROOT).join("target").join(name)
}

/// Builds the gateway with more arguments for cargo, and with a flag for the compiler beside those of the environment. With such a
/// flag cargo takes none from its own configuration.
pub(crate) fn gateway(name: &str, arguments: &[&str], flag: Option<&str>) -> Result<PathBuf, Failed> {
    // Named, so that the flags are not for build scripts too.
    let (host, target) = (host()?, folder(name));
    let mut command = Command::new("cargo");
    command.current_dir(ROOT).args(["build", "--release", "--locked", "-p", "gwanmun", "--bin", "gwanmun", "--target"]);
    command.arg(&host).arg("--target-dir").arg(&target).args(arguments);
    if let Some(flag) = flag {
        // The one that counts when both are set, and the one in which a flag may have a space.
        let given = std::env::var("CARGO_ENCODED_RUSTFLAGS").or_else(|_| {
            let flags = std::env::var("RUSTFLAGS")?;
            Ok::<_, std::env::VarError>(flags.split_whitespace().collect::<Vec<_>>().join(SEPARATOR))
        });
        let flags = given.into_iter().filter(|flags| !flags.is_empty()).chain([flag.to_owned()]);
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.collect::<Vec<_>>().join(SEPARATOR));
    }
    let built = command.status()?;
    if built.success() {
        Ok(target.join(host).join("release/gwanmun").canonicalize()?)
    } else {
        Err("the gateway does not build".into())
    }
}

/// What the compiler says of itself.
pub(crate) fn rustc(arguments: &[&str]) -> Result<String, Failed> {
    let told = Command::new("rustc").current_dir(ROOT).args(arguments).output()?;
    if told.status.success() { Ok(String::from_utf8(told.stdout)?) } else { Err("rustc does not run".into()) }
}

/// The kind of machine that the compiler runs on.
pub(crate) fn host() -> Result<String, Failed> {
    let told = rustc(&["-vV"])?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc does not say its host")?;
    Ok(host.to_owned())
}
