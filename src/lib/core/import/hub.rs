//! Downloads from the hub into its cache, in a build with the feature `hub`.

use std::path::{Path, PathBuf};

use super::repository::Repository;
use crate::Result;

/// The hub, over the network. Without the feature there is none.
pub(super) struct Hub {
    #[cfg(feature = "hub")]
    name: String,
    #[cfg(feature = "hub")]
    api: hf_hub::api::sync::Api,
}

#[cfg(not(feature = "hub"))]
impl Hub {
    pub fn connect(_: &str, _: Option<&Path>, _: bool) -> Result<Option<Hub>> {
        Ok(None)
    }

    pub fn download(&self, _: &Repository) -> Result<PathBuf> {
        Ok(PathBuf::new()) // there is no Hub to call this
    }
}

#[cfg(feature = "hub")]
impl Hub {
    /// Prepares downloads for the model called `name`, as the environment says (`HF_ENDPOINT`).
    ///
    /// # Errors
    /// When no client can be made.
    pub fn connect(name: &str, cache: Option<&Path>, progress: bool) -> Result<Option<Hub>> {
        use std::io::IsTerminal;
        let mut builder = hf_hub::api::sync::ApiBuilder::from_env()
            .with_progress(progress && std::io::stderr().is_terminal());
        if let Some(cache) = cache {
            builder = builder.with_cache_dir(cache.into());
        }
        let api = builder.build().map_err(|e| failed(name, e))?;
        Ok(Some(Hub { name: name.into(), api }))
    }

    /// Fetches the file that is wanted; or config, tokenizer and weights, and gives their folder.
    /// The first repository that has them counts.
    ///
    /// # Errors
    /// The last repository's refusal.
    pub fn download(&self, repository: &Repository) -> Result<PathBuf> {
        let mut outcome = Err(crate::Error::input(&self.name, "is no repository of the hub"));
        for id in &repository.ids {
            outcome = self.fetch(id, repository);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn fetch(&self, id: &str, repository: &Repository) -> Result<PathBuf> {
        use super::hf;
        let (model, revision) = (hf_hub::RepoType::Model, repository.revision.clone());
        let repo = self.api.repo(hf_hub::Repo::with_revision(id.into(), model, revision));
        let get = |file: &str| repo.get(file).map_err(|e| failed(&self.name, e));
        if let Some(file) = &repository.file {
            return get(&file.to_string_lossy());
        }
        let info = repo.info().map_err(|e| failed(&self.name, e))?;
        let has = |name: &str| info.siblings.iter().any(|file| file.rfilename == name);
        let Some(weights) = hf::WEIGHTS.iter().find(|name| has(name)) else {
            let what = format!("{id} has none of {}; name a file of it", hf::WEIGHTS.join(", "));
            return Err(crate::Error::input(&self.name, what));
        };
        for file in ["config.json", "tokenizer.json"].into_iter().filter(|name| has(name)) {
            get(file)?;
        }
        let path = get(weights)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        if weights.ends_with(".index.json") {
            for shard in hf::weight_files(&folder)? {
                get(&shard.file_name().unwrap_or_default().to_string_lossy())?;
            }
        }
        Ok(folder)
    }
}

/// The network's or the hub's fault: exit 1.
#[cfg(feature = "hub")]
fn failed(name: &str, error: hf_hub::api::sync::ApiError) -> crate::Error {
    crate::Error::read(name, std::io::Error::other(format!("download failed: {error}")))
}

#[cfg(all(test, feature = "hub"))]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A hub of one repository, `openai-community/gpt2-nano`, that answers as the real one does.
    fn serve(files: Vec<(&'static str, Vec<u8>)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                let mut from = 0;
                let mut to = usize::MAX;
                for line in lines.by_ref().map_while(|line| line.ok()).take_while(|l| !l.is_empty())
                {
                    if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
                        let (a, b) = range.split_once('-').unwrap();
                        from = a.parse().unwrap();
                        to = b.parse().map_or(usize::MAX, |b: usize| b + 1);
                    }
                }
                let path = request.split(' ').nth(1).unwrap();
                let repository = "openai-community/gpt2-nano";
                let listing = format!("/api/models/{repository}/revision/main");
                let file = path.strip_prefix(&format!("/{repository}/resolve/main/"));
                let (status, headers, body) = if path == listing {
                    let names = files.iter().map(|(n, _)| serde_json::json!({"rfilename": n}));
                    let names: Vec<_> = names.collect();
                    let body = serde_json::json!({"siblings": names, "sha": "abc"}).to_string();
                    ("200 OK", String::new(), body.into_bytes())
                } else if let Some((name, bytes)) = files.iter().find(|(n, _)| Some(*n) == file) {
                    let part = &bytes[from..to.min(bytes.len())];
                    let last = from + part.len() - 1;
                    let headers = format!(
                        "etag: \"{name}\"\r\nx-repo-commit: abc\r\ncontent-range: bytes \
                         {from}-{last}/{}\r\n",
                        bytes.len()
                    );
                    ("206 Partial Content", headers, part.to_vec())
                } else {
                    ("404 Not Found", String::new(), Vec::new())
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: \
                     close\r\n\r\n"
                );
                stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
                let _ = stream.take(0).read(&mut []);
            }
        });
        address
    }

    #[test]
    fn a_model_is_downloaded_into_the_cache_and_found_there_again() {
        let cache = tempfile::tempdir().unwrap();
        let index = br#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
        let address = serve(vec![
            ("config.json", b"{}".to_vec()),
            ("README.md", b"not wanted".to_vec()),
            ("model.safetensors.index.json", index.to_vec()),
            ("one.safetensors", vec![1; 100_000]),
            ("two.safetensors", vec![2; 10]),
        ]);
        let api = hf_hub::api::sync::ApiBuilder::new()
            .with_endpoint(address)
            .with_cache_dir(cache.path().into())
            .with_token(None)
            .with_progress(false)
            .build()
            .unwrap();
        let hub = Hub { name: "gpt2-nano".into(), api };
        let repository = Repository::parse("gpt2-nano").unwrap();
        let folder = hub.download(&repository).unwrap();
        assert_eq!(std::fs::read(folder.join("one.safetensors")).unwrap(), vec![1; 100_000]);
        assert_eq!(std::fs::read(folder.join("two.safetensors")).unwrap(), vec![2; 10]);
        assert!(folder.join("config.json").is_file() && !folder.join("README.md").exists());
        let found = repository.snapshot(cache.path(), "openai-community/gpt2-nano");
        assert_eq!(found, Some(folder));
        let missing = Repository::parse("a/b").unwrap();
        let error = hub.download(&missing).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().contains("download failed")), (1, true));
    }
}
