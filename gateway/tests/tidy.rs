//! The rules of the house as tests.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            rust_files(&path, files);
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
}

fn all_rust_files() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    rust_files(&root(), &mut files);
    assert!(files.len() > 50);
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// What stands before the tests at a file's end.
fn production(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap()
}

#[test]
fn every_file_opens_with_what_it_owns() {
    for (path, text) in all_rust_files() {
        assert!(text.starts_with("//! "), "{}", path.display());
    }
}

#[test]
fn no_file_is_named_for_everything_and_nothing() {
    for (path, _) in all_rust_files() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        for vague in ["util", "common", "helper", "manager", "misc", "mod"] {
            assert!(!name.contains(vague), "{}", path.display());
        }
    }
}

#[test]
fn files_stay_short_enough_to_be_read() {
    for (path, text) in all_rust_files() {
        let in_tests = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
        let lines = production(&text).lines().count();
        assert!(in_tests || lines <= 350, "{} has {lines} production lines", path.display());
    }
}

#[test]
fn a_module_uses_only_what_is_listed_below_it() {
    let source = root().join("gateway/src");
    let library = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let order: Vec<&str> =
        library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(order.len() > 10);
    for (path, text) in all_rust_files() {
        let Ok(inside) = path.strip_prefix(&source) else { continue };
        let module = inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        let Some(own) = order.iter().position(|name| *name == module) else { continue };
        let mut rest = production(&text);
        while let Some((_, behind)) = rest.split_once("crate::") {
            let names: Vec<&str> = if let Some(list) = behind.strip_prefix('{') {
                let list = list.split("};").next().unwrap();
                list.split(',').map(|item| item.trim().split("::").next().unwrap()).collect()
            } else {
                vec![behind.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()]
            };
            for name in names {
                if let Some(used) = order.iter().position(|known| *known == name) {
                    assert!(used >= own, "{} uses `{name}`, which is listed above `{module}`", path.display());
                }
            }
            rest = behind;
        }
    }
}

#[test]
fn only_one_place_reads_upstream_sockets_the_clock_the_environment_and_the_charset_tables() {
    // Clippy's disallowed methods keep the clock and the environment; these are the rest.
    for (path, text) in all_rust_files() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        if name.contains("/tests") || name.ends_with("tests.rs") {
            continue;
        }
        // The floor is what the library alone costs; nothing that anybody runs uses it.
        let charset = ["codec/src/charset.rs", "loadtest/src/floor.rs"];
        assert!(!text.contains("encoding_rs::") || charset.contains(&&*name), "{name} names encoding_rs");
        let upstream = text.contains("poll_write(") || text.contains("read_buf(");
        let simulator = ["mock-core-banking/src/wire.rs", "mock-core-banking/src/arrival.rs"];
        let allowed = ["gateway/src/pool/exchange.rs", "gateway/src/http/edge.rs", simulator[0], simulator[1]];
        assert!(!upstream || allowed.contains(&&*name), "{name} reads or writes a socket");
    }
}

#[test]
fn every_crate_has_the_lints_of_the_workspace_and_one_may_have_unsafe_code() {
    let manifest = |folder: &str| -> toml::Table {
        std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap().parse().unwrap()
    };
    let workspace = manifest("");
    for member in workspace["workspace"]["members"].as_array().unwrap() {
        let member = member.as_str().unwrap();
        let lints = manifest(member)["lints"].clone();
        if member != "gateway/mapped" {
            assert_eq!(lints.get("workspace"), Some(&toml::Value::Boolean(true)), "{member}");
            continue;
        }
        for (tool, rules) in workspace["workspace"]["lints"].as_table().unwrap() {
            for (rule, level) in rules.as_table().unwrap() {
                let own = lints.get(tool).and_then(|own| own.get(rule));
                assert!(own == Some(level) || rule == "unsafe_code", "{member}: {rule}");
            }
        }
    }
    let mut unsafe_files = Vec::new();
    for (path, text) in all_rust_files() {
        if text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains("unsafe {")) {
            unsafe_files.push(path.strip_prefix(root()).unwrap().display().to_string());
        }
    }
    unsafe_files.retain(|file| file != "gateway/tests/tidy.rs");
    assert_eq!(unsafe_files, ["gateway/mapped/src/lib.rs"]);
}

#[test]
fn no_part_can_be_left_out_of_a_build_that_serves_somebody() {
    for folder in ["", "codec", "gateway/mapped", "gateway", "gateway/fuzz", "loadtest", "mock-core-banking"] {
        let manifest: toml::Table =
            std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap().parse().unwrap();
        let features = manifest.get("features").and_then(toml::Value::as_table);
        assert!(features.is_none_or(|features| !features.contains_key("default")), "{folder}: features are asked for");
        let asks = manifest.to_string().contains("overhead");
        assert_eq!(asks, folder == "gateway", "{folder}: only the load test asks for `overhead`, by its command line");
    }
    let mut users = Vec::new();
    for (path, text) in all_rust_files() {
        if text.contains("feature = \"overhead\"") && !path.ends_with("tidy.rs") {
            users.push(path.strip_prefix(root()).unwrap().display().to_string());
        }
    }
    assert_eq!(users, ["gateway/src/left_out.rs"]);
}

#[test]
fn every_decision_is_listed_and_every_link_in_the_documents_leads_somewhere() {
    let root = root();
    let mut pages: Vec<PathBuf> =
        ["README.md", "README.ko.md", "ROADMAP.md"].iter().map(|page| root.join(page)).collect();
    for folder in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            pages.extend(Some(entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "md")));
        }
    }
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if target.is_empty() || target.starts_with("http") {
                continue;
            }
            let path = page.parent().unwrap().join(target);
            assert!(path.exists(), "{}: {target}", page.display());
        }
    }
    let index = std::fs::read_to_string(root.join("docs/decisions/README.md")).unwrap();
    for page in pages.iter().filter(|page| page.parent().unwrap().ends_with("decisions")) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || index.contains(name), "docs/decisions/README.md does not list {name}");
    }
}
