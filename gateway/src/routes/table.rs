//! Which path leads to which route.

use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;

use super::Route;

/// All routes by path.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    by_path: HashMap<String, Arc<Route>>,
}

/// A path that two routes claim.
#[derive(Debug, PartialEq, Eq)]
pub struct PathTaken(pub String);

impl fmt::Display for PathTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the path `{}` belongs to another route", self.0)
    }
}

impl RouteTable {
    /// Adds a route under its paths.
    ///
    /// # Errors
    /// The first path that is taken.
    pub fn add(&mut self, paths: &[String], route: &Arc<Route>) -> Result<(), PathTaken> {
        for path in paths {
            if self.by_path.contains_key(path) {
                return Err(PathTaken(path.clone()));
            }
            self.by_path.insert(path.clone(), Arc::clone(route));
        }
        Ok(())
    }

    /// The route of a path.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Arc<Route>> {
        self.by_path.get(path)
    }

    /// Every route once, by name.
    #[must_use]
    pub fn all(&self) -> Vec<&Arc<Route>> {
        let mut routes: Vec<_> = self.by_path.values().collect();
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        routes.dedup_by(|a, b| a.name == b.name);
        routes
    }
}
