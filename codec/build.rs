//! Carries every file of `layouts/` in the binary, so that adding a built-in message edits no Rust.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

#[expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts by environment variables")]
fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=layouts");
    let root = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(Path::new(&root).join("layouts"))? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let mut source = String::from("const BUILTIN: &[(&str, &str)] = &[\n");
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        writeln!(source, "    ({:?}, include_str!({:?})),", format!("layouts/{name}"), path.display().to_string())
            .map_err(io::Error::other)?;
    }
    source.push_str("];\n");
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&out).join("builtin_layouts.rs"), source)
}
