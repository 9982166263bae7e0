//! A repository of the hub: its name, and its place in the hub's cache.

use std::path::{Path, PathBuf};

/// Extensions of files of weights: a name with one of them is a path, not a repository.
const EXTENSIONS: [&str; 8] = ["pt", "pth", "ckpt", "bin", "st", "safetensors", "json", "tar"];

/// A repository of the hub, and what is wanted of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repository {
    /// `OWNER/NAME`, or a name of the hub's first days; tried in this order.
    pub ids: Vec<String>,
    /// A branch, tag or commit.
    pub revision: String,
    /// A file inside, for repositories that are no model folder.
    pub file: Option<PathBuf>,
}

impl Repository {
    /// Reads `OWNER/NAME[@REVISION][/FILE]` or a bare name; `None` where it can be neither.
    pub fn parse(text: &str) -> Option<Repository> {
        let good = |part: &&str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with('.')
                && part.chars().all(known)
        };
        let extension = Path::new(text).extension().and_then(|e| e.to_str()).unwrap_or("");
        let parts: Vec<&str> = text.split('/').collect();
        if parts.len() <= 2 && EXTENSIONS.contains(&extension) {
            return None;
        }
        let (ids, revision, rest) = match parts[..] {
            [name] => {
                let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
                let mut ids = vec![name.to_owned()];
                if name == "gpt2" || name.starts_with("gpt2-") {
                    ids.insert(0, format!("openai-community/{name}"));
                }
                good(&name).then_some((ids, revision, &parts[1..]))?
            }
            [owner, name, ..] => {
                let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
                let ids = vec![format!("{owner}/{name}")];
                (good(&owner) && good(&name)).then_some((ids, revision, &parts[2..]))?
            }
            [] => return None,
        };
        if !good(&revision) || !rest.iter().all(good) {
            return None;
        }
        let file = (!rest.is_empty()).then(|| rest.iter().collect());
        Some(Repository { ids, revision: revision.into(), file })
    }

    /// The snapshot of the revision in the cache, or the file in it.
    pub fn snapshot(&self, cache: &Path, id: &str) -> Option<PathBuf> {
        let folder = cache.join(folder_of(id));
        let named = std::fs::read_to_string(folder.join("refs").join(&self.revision)).ok();
        let commit = named.as_deref().map(str::trim).unwrap_or(&self.revision);
        let plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
        let snapshot = folder.join("snapshots").join(if plain { commit } else { "none" });
        let wanted = match &self.file {
            Some(file) => snapshot.join(file),
            None => snapshot,
        };
        wanted.exists().then_some(wanted)
    }
}

/// `models--OWNER--NAME`.
pub(super) fn folder_of(id: &str) -> String {
    format!("models--{}", id.replace('/', "--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories_are_told_from_paths() {
        let parse = |text: &str| Repository::parse(text).map(|r| (r.ids, r.revision, r.file));
        let main = || "main".to_owned();
        assert_eq!(parse("a/b"), Some((vec!["a/b".into()], main(), None)));
        assert_eq!(parse("a/b@v1.0"), Some((vec!["a/b".into()], "v1.0".into(), None)));
        assert_eq!(parse("a/b/c/d.pt").unwrap().2, Some("c/d.pt".into()));
        let gpt2 = parse("gpt2-large").unwrap().0;
        assert_eq!(gpt2, ["openai-community/gpt2-large", "gpt2-large"]);
        for path in ["ckpt.pt", "runs/m.st", "/a/b", "../b", "a/..", "a/b/../c", "", "a//b", "a/b@"]
        {
            assert_eq!(parse(path), None, "{path}");
        }
    }
}
