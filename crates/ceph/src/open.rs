//! Opens images, creates them and looks at them, with time limits.
//!
//! A thread of its own makes the calls, because librados waits for a cluster as long as it takes. Who asked gives up after a
//! limit. The thread then goes on until the cluster answers, and closes what nobody wants any more.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::Error;
use crate::identity::Identity;
use crate::image::Image;
use crate::lock;
use crate::native::{Cluster, Facts, OpenImage, Pool, text};
use crate::spec::ImageSpec;

/// How long a monitor may take to answer.
const CONNECT: Duration = Duration::from_secs(20);
/// How long the rest may take: the pool, the image and its lock, as long as nobody else has it.
const ANSWER: Duration = Duration::from_secs(25);

/// What an image must have, whatever the configuration file says.
const SETTINGS: [(&std::ffi::CStr, &std::ffi::CStr); 5] = [
    // An answered write is on the disks of the cluster, not in this process.
    (c"rbd_cache", c"false"),
    // Nor in a file of this host, which another gateway does not have.
    (c"rbd_persistent_cache_mode", c"disabled"),
    // A request waits for the cluster. An error could come although the write is carried out later, over a newer one.
    (c"rados_osd_op_timeout", c"0"),
    // A host that loses the lock is kept from writing by the cluster itself.
    (c"rbd_blocklist_on_break_lock", c"true"),
    (c"client_mount_timeout", c"20"),
];

/// What is known of an image that is not open.
#[derive(Clone, Debug)]
pub struct Found {
    /// Bytes.
    pub size: u64,
    /// Which image it is.
    pub identity: Identity,
}

/// What a thread tells of its progress.
enum News<T> {
    /// A monitor has answered.
    Connected,
    /// The lock is another client's, and may be given.
    Waits,
    Ended(Result<T, Error>),
}

/// Looks at an image, without its lock. Blocks, at most for the limits.
pub fn look(client: &Client, spec: &ImageSpec) -> Result<Found, Error> {
    in_time(client, spec, |asked, _| {
        let image = asked.image(true)?;
        asked.found(&image)
    })
}

/// Creates an image. Blocks, at most for the limits.
pub fn create(client: &Client, spec: &ImageSpec, size: u64) -> Result<Found, Error> {
    in_time(client, spec, move |asked, _| {
        let made = asked.pool()?.create(&text("the image", asked.spec.image.clone())?, size);
        match made {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists(asked.spec.clone()));
            }
            other => other.map_err(|why| asked.failed("cannot create", why))?,
        }
        asked.found(&asked.image(true)?)
    })
}

/// Changes the size of an image that nobody has locked; a larger one stays as it is unless `may_shrink`. Blocks, at most for the
/// limits.
pub fn resize(
    client: &Client,
    spec: &ImageSpec,
    former: Option<&str>,
    size: u64,
    may_shrink: bool,
) -> Result<(), Error> {
    let former = former.map(str::to_owned);
    in_time(client, spec, move |asked, waits| {
        let image = asked.image(false)?;
        asked.lock(&image, former.as_deref(), waits)?;
        let sized = match image.size() {
            Ok(now) if now == size || (now > size && !may_shrink) => Ok(()),
            _ => image.resize(size).map_err(|why| asked.failed("cannot resize", why)),
        };
        let unlocked = image.unlock().map_err(|why| asked.failed("cannot unlock", why));
        sized.and(unlocked)
    })
}

/// Opens an image and takes its lock. `former` is the address of a holder that is known to be dead. Blocks, at most for the limits.
pub fn open(client: &Client, spec: &ImageSpec, former: Option<&str>) -> Result<Image, Error> {
    let former = former.map(str::to_owned);
    in_time(client, spec, move |asked, waits| {
        let image = asked.image(false)?;
        let facts = asked.facts(&image)?;
        let holder = asked.lock(&image, former.as_deref(), waits)?;
        let identity = identity(asked.fsid()?, &facts);
        Image::start(image, asked.spec.clone(), &facts, holder, identity)
    })
}

fn identity(fsid: String, facts: &Facts) -> Identity {
    Identity { fsid, image: facts.id.clone(), created_us: facts.created_us }
}

/// Runs `work` on a thread of its own, as long as it may take.
fn in_time<T: Send + 'static>(
    client: &Client,
    spec: &ImageSpec,
    work: impl FnOnce(&Asked, &mut dyn FnMut(&str)) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (send, news) = mpsc::channel();
    let (of_thread, of_spec) = (client.clone(), spec.clone());
    let run = move || {
        // Whoever asked may have given up; then this value is dropped, and what it holds is closed.
        let tell = |news| drop(send.send(news));
        let ended = Asked::connect(of_thread, of_spec).and_then(|asked| {
            tell(News::Connected);
            work(&asked, &mut |holder| {
                tracing::warn!(
                    "{}: the client at {holder} has its lock and is asked for it, for at most {} s: if it is dead, the \
                     cluster knows by then",
                    asked.spec,
                    lock::PATIENCE.as_secs()
                );
                tell(News::Waits);
            })
        });
        tell(News::Ended(ended));
    };
    let thread = std::thread::Builder::new().name("weft-ceph".to_owned()).spawn(run);
    let thread = thread.map_err(|e| Error::NoThread(spec.clone(), e))?;
    let mut until = Instant::now() + CONNECT + ANSWER;
    let mut limit = CONNECT + ANSWER;
    loop {
        match news.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(News::Connected) => (until, limit) = (Instant::now() + ANSWER, ANSWER),
            Ok(News::Waits) => {
                (until, limit) = (Instant::now() + lock::PATIENCE + ANSWER, lock::PATIENCE + ANSWER);
            }
            Ok(News::Ended(ended)) => return ended,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::Silent { spec: spec.clone(), seconds: limit.as_secs() });
            }
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => return Err(Error::Silent { spec: spec.clone(), seconds: 0 }),
            },
        }
    }
}

/// Whether one of these keyrings has an entry of the user. librados reports a missing one like a wrong key.
fn has_key(keyrings: &str, id: &str) -> bool {
    let entry = format!("[client.{id}]");
    keyrings.split([',', ';', ' ']).any(|path| {
        let keyring = std::fs::read_to_string(path.trim());
        keyring.is_ok_and(|keyring| keyring.lines().any(|line| line.trim() == entry))
    })
}

/// A connected client, and the image that it asks for.
struct Asked {
    cluster: Arc<Cluster>,
    client: Client,
    spec: ImageSpec,
}

impl Asked {
    fn connect(client: Client, spec: ImageSpec) -> Result<Asked, Error> {
        let cluster = Cluster::new(&text("--ceph-id", client.id.clone())?)?;
        let path = text("--ceph-conf", client.conf.as_os_str().as_encoded_bytes())?;
        let conf = |why| Error::Conf { path: client.conf.clone(), why };
        cluster.read_conf(&path).map_err(conf)?;
        for (key, value) in SETTINGS {
            match cluster.set(key, value) {
                // A key that this version does not have yet, or no longer.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other.map_err(conf)?,
            }
        }
        let (monitors, keyring) = (cluster.get(c"mon_host"), cluster.get(c"keyring"));
        let id = client.id.clone();
        match cluster.connect() {
            Ok(()) => Ok(Asked { cluster: Arc::new(cluster), client, spec }),
            Err(e) => Err(match e.kind() {
                _ if monitors.is_empty() => Error::NoMonitors { path: client.conf },
                std::io::ErrorKind::TimedOut => {
                    Error::NoCluster { monitors, conf: client.conf, seconds: CONNECT.as_secs() }
                }
                std::io::ErrorKind::NotFound => Error::NoKey { id, keyring },
                std::io::ErrorKind::PermissionDenied
                    if cluster.get(c"key").is_empty() && !has_key(&keyring, &id) =>
                {
                    Error::NoKey { id, keyring }
                }
                std::io::ErrorKind::PermissionDenied => Error::BadKey { id, keyring },
                _ => Error::Failed { doing: "cannot connect for", spec, why: e },
            }),
        }
    }

    fn failed(&self, doing: &'static str, why: std::io::Error) -> Error {
        match why.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Error::Forbidden { id: self.client.id.clone(), spec: self.spec.clone() }
            }
            _ => Error::Failed { doing, spec: self.spec.clone(), why },
        }
    }

    fn pool(&self) -> Result<Pool, Error> {
        let ImageSpec { pool, namespace, .. } = &self.spec;
        let name = text("the pool", pool.clone())?;
        match Pool::open(&self.cluster, &name, &text("the namespace", namespace.clone())?) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::NoPool(pool.clone())),
            other => other.map_err(|why| self.failed("cannot open the pool of", why)),
        }
    }

    fn image(&self, read_only: bool) -> Result<OpenImage, Error> {
        let name = text("the image", self.spec.image.clone())?;
        match OpenImage::open(self.pool()?, &name, read_only) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::NoImage(self.spec.clone())),
            other => other.map_err(|why| self.failed("cannot open", why)),
        }
    }

    /// What does not change about an image, if it can be served.
    fn facts(&self, image: &OpenImage) -> Result<Facts, Error> {
        let facts = image.facts().map_err(|why| self.failed("cannot look at", why))?;
        if facts.can_lock { Ok(facts) } else { Err(Error::NoLock(self.spec.clone())) }
    }

    fn found(&self, image: &OpenImage) -> Result<Found, Error> {
        let identity = identity(self.fsid()?, &self.facts(image)?);
        let size = image.size().map_err(|why| self.failed("cannot look at", why))?;
        Ok(Found { size, identity })
    }

    fn fsid(&self) -> Result<String, Error> {
        self.cluster.fsid().map_err(|why| self.failed("cannot ask which cluster has", why))
    }

    fn lock(
        &self,
        image: &OpenImage,
        former: Option<&str>,
        waits: &mut dyn FnMut(&str),
    ) -> Result<String, Error> {
        lock::take(image, &self.spec, former, waits)
    }
}
