//! Asks about files, and waits a limited time for the answer: a file system whose disk or server is gone may never give one.
//!
//! A system call that waits for such a file system cannot be taken back, and a process ends only when all its threads have. So a
//! process with a single thread asks through a child ([`answers`]): it can end without an answer, and be confined meanwhile,
//! which binds only threads that do not exist yet. A process with several threads cannot be copied, so it asks through one more.
//!
//! A thread without an answer stays until its file system answers. Nothing else is asked about its path before that, and at most
//! [`MAX_ASKED`] paths are asked about at a time.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::clock;

/// The most paths that threads ask about at a time. A question beyond that gets no answer.
pub const MAX_ASKED: usize = 512;
/// How often a question is tried again whose path is being asked about.
const AGAIN: Duration = Duration::from_millis(10);
/// The longest answer that a child may give, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// There was none in time.
    #[error("its file system has not answered within {} s", .0.as_secs())]
    Late(Duration),
    /// Nobody could be asked.
    #[error("its file system cannot be asked: {0}")]
    Unasked(#[from] io::Error),
}

impl From<Unanswered> for io::Error {
    fn from(why: Unanswered) -> io::Error {
        match why {
            Unanswered::Late(_) => io::Error::new(io::ErrorKind::TimedOut, why.to_string()),
            Unanswered::Unasked(e) => e,
        }
    }
}

/// What is asked about a path.
type Question = dyn Fn(&Path) -> Vec<u8> + Send + Sync;

/// Asks about each of these paths, all at the same time. The answers come in the order of the paths.
///
/// While this process has a single thread, `question` runs in a child without descriptors.
pub fn answers(
    paths: &[PathBuf],
    limit: Duration,
    question: impl Fn(&Path) -> Vec<u8> + Send + Sync + 'static,
) -> Vec<Result<Vec<u8>, Unanswered>> {
    let mut answers: Vec<_> = paths.iter().map(|_| Err(Unanswered::Late(limit))).collect();
    let question: Arc<Question> = Arc::new(question);
    let until = clock::instant() + limit;
    let answer = |at: usize, answer| {
        if let Some(place) = answers.get_mut(at) {
            *place = answer;
        }
    };
    match has_one_thread() && !paths.is_empty() {
        true => by_child(paths, until, &question, answer),
        false => by_threads(paths, until, &question, answer),
    }
    answers
}

/// Signs that long work goes on.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    /// The work has come further.
    pub fn tell(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Does some work on the file or folder at a path, by a thread of its own. Work that comes too late ends unheard.
pub fn within<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unanswered> {
    within_of_progress(path, limit, |_| work())
}

/// The same for work that may take longer, if it tells of its progress at least as often.
pub fn within_of_progress<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    work: impl FnOnce(&Progress) -> T + Send + 'static,
) -> Result<T, Unanswered> {
    let until = clock::instant() + limit;
    let turn = loop {
        match Turn::take(path) {
            Some(turn) => break turn,
            None if clock::instant() >= until => return Err(Unanswered::Late(limit)),
            None => std::thread::sleep(AGAIN),
        }
    };
    let progress = Arc::new(Progress::default());
    let ((send, done), told) = (mpsc::channel(), progress.clone());
    let thread = spawn(move || {
        let answer = work(&told);
        // Before the answer is heard: a caller that asks again at once finds the path free.
        drop(turn);
        // The caller may have given up.
        let _ = send.send(answer);
    })?;
    let (mut left, mut seen) = (until.saturating_duration_since(clock::instant()), 0);
    loop {
        match done.recv_timeout(left) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                let now = progress.0.load(Ordering::Relaxed);
                if now == seen {
                    return Err(Unanswered::Late(limit));
                }
                (left, seen) = (limit, now);
            }
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => return Err(io::Error::other("its thread has ended").into()),
            },
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("weft-asks".to_owned()).spawn(work)
}

/// Without /proc nobody knows.
fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// The paths that threads of this process are asking about.
static ASKED: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);

fn asked() -> MutexGuard<'static, Option<HashSet<PathBuf>>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to ask about a path.
struct Turn(PathBuf);

impl Turn {
    fn take(path: &Path) -> Option<Turn> {
        let mut asked = asked();
        let asked = asked.get_or_insert_default();
        (asked.len() < MAX_ASKED && asked.insert(path.to_owned())).then(|| Turn(path.to_owned()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(asked) = asked().as_mut() {
            asked.remove(&self.0);
        }
    }
}

type Answer = Result<Vec<u8>, Unanswered>;

fn by_threads(
    paths: &[PathBuf],
    until: Instant,
    question: &Arc<Question>,
    mut answer: impl FnMut(usize, Answer),
) {
    let (send, answered) = mpsc::channel();
    let mut waiting: Vec<(usize, &PathBuf)> = paths.iter().enumerate().collect();
    let mut open = paths.len();
    while open > 0 {
        waiting.retain(|(at, path)| {
            let Some(turn) = Turn::take(path) else { return true };
            let (question, send, at) = (question.clone(), send.clone(), *at);
            let asks = move || {
                let answer = question(&turn.0);
                drop(turn);
                let _ = send.send((at, answer));
            };
            if let Err(e) = spawn(asks) {
                answer(at, Err(e.into()));
                open -= 1;
            }
            false
        });
        let left = until.saturating_duration_since(clock::instant());
        let wait = if waiting.is_empty() { left } else { left.min(AGAIN) };
        match answered.recv_timeout(wait) {
            Ok((at, bytes)) => {
                answer(at, Ok(bytes));
                open -= 1;
            }
            Err(_) if left.is_zero() => return,
            Err(_) => {}
        }
    }
}

/// Children that had not ended when their parent had waited long enough.
static LEFT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn by_child(
    paths: &[PathBuf],
    until: Instant,
    question: &Arc<Question>,
    mut answer: impl FnMut(usize, Answer),
) {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    // An error says that somebody else has waited for it.
    left.retain(|child| matches!(waitpid(Some(*child), WaitOptions::NOHANG), Ok(None)));
    let mut tell = |e: io::Error| {
        for at in 0..paths.len() {
            answer(at, Err(io::Error::from(e.kind()).into()));
        }
    };
    let (pipe, write) = match io::pipe() {
        Ok(ends) => ends,
        Err(e) => return tell(e),
    };
    // SAFETY: this process has one thread, so the child is a whole copy of it, without locks that another thread holds.
    let child = match unsafe { libc::fork() } {
        -1 => return tell(io::Error::last_os_error()),
        0 => {
            drop(pipe);
            answer_and_end(paths, until, question, &write)
        }
        child => child,
    };
    drop(write);
    let open = read_answers(pipe, paths.len(), until, answer);
    let Some(child) = Pid::from_raw(child) else { return };
    if open > 0 {
        // It may still wait for its file system; then it ends when that answers.
        let _ = kill_process(child, Signal::KILL);
    }
    let ended = waitpid(Some(child), if open > 0 { WaitOptions::NOHANG } else { WaitOptions::empty() });
    if let Ok(None) = ended {
        left.push(child);
    }
}

/// The child. It keeps no descriptor but its pipe. It may outlive its parent, and other descriptors would hold up the reader of its
/// parent's output and the next server on its parent's ports.
fn answer_and_end(paths: &[PathBuf], until: Instant, question: &Arc<Question>, pipe: &io::PipeWriter) -> ! {
    let run = || {
        // SAFETY: the number of a descriptor that is open, and no memory. Nothing uses what was behind the numbers before.
        let pipe = unsafe {
            libc::dup2(pipe.as_raw_fd(), libc::STDIN_FILENO);
            libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
            std::mem::ManuallyDrop::new(<std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(0))
        };
        by_threads(paths, until, question, |at, answer| {
            let Ok(bytes) = answer else { return };
            let (at, len) = (at as u64, bytes.len() as u64);
            // Without a parent nobody needs it.
            let _ = (&*pipe).write_all(&[&at.to_le_bytes()[..], &len.to_le_bytes(), &bytes].concat());
        });
    };
    let status = i32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    // SAFETY: it runs no code of this process, which is its parent's.
    unsafe { libc::_exit(status) }
}

/// Returns how many answers are missing.
fn read_answers(
    mut pipe: io::PipeReader,
    mut open: usize,
    until: Instant,
    mut answer: impl FnMut(usize, Answer),
) -> usize {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    while open > 0 {
        let left = until.saturating_duration_since(clock::instant());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => break,
        }
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        while let Some((at, one, rest)) = parsed(&bytes) {
            answer(at, Ok(one));
            bytes = rest;
            open = open.saturating_sub(1);
        }
        if bytes.len() > MAX_ANSWER {
            break;
        }
    }
    open
}

/// The first answer, and the bytes after it.
fn parsed(bytes: &[u8]) -> Option<(usize, Vec<u8>, Vec<u8>)> {
    let (at, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let [at, len] = [at, len].map(|number| u64::from_le_bytes(*number) as usize);
    let (one, rest) = rest.split_at_checked(len)?;
    Some((at, one.to_vec(), rest.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    /// Paths that nobody else asks about.
    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| Path::new("/none").join(name)).collect()
    }

    #[test]
    fn one_that_does_not_answer_delays_nobody_else_and_is_not_asked_twice() {
        let paths = paths(&["a", "hung", "b"]);
        let (release, hold) = mpsc::channel::<()>();
        let hold = Mutex::new(hold);
        let question = move |path: &Path| {
            if path.ends_with("hung") {
                let _ = hold.lock().unwrap().recv();
            }
            path.as_os_str().as_encoded_bytes().to_vec()
        };
        let question: Arc<Question> = Arc::new(question);
        let (mut got, mut release) = (Vec::new(), Some(release));
        by_threads(&paths, Instant::now() + LONG, &question, |at, answer| {
            got.push((at, answer.unwrap()));
            // It answers only when the others have.
            if got.len() == 2 {
                drop(release.take());
            }
        });
        got[..2].sort();
        let answers = [(0, b"/none/a".to_vec()), (2, b"/none/b".to_vec()), (1, b"/none/hung".to_vec())];
        assert_eq!(got, answers);
        let (release, hold) = mpsc::channel::<()>();
        let hangs = within(&paths[1], SOON, move || hold.recv());
        assert!(matches!(hangs, Err(Unanswered::Late(SOON))), "{hangs:?}");
        // Its thread is there still.
        let again = within(&paths[1], SOON, || 1);
        assert!(matches!(again, Err(Unanswered::Late(SOON))), "{again:?}");
        by_threads(&paths[1..2], Instant::now() + SOON, &question, |_, answer| panic!("{answer:?}"));
        assert_eq!(within(&paths[0], LONG, || 1).unwrap(), 1);
        drop(release);
        assert_eq!(within(&paths[1], LONG, || 2).unwrap(), 2);
    }

    #[test]
    fn a_child_answers_for_a_process_with_one_thread_as_far_as_it_can() {
        // This one has several, which may hold the locks that the child needs.
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "deadline::tests::a_child_answers", "--ignored"]);
        let ran = alone.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }

    #[test]
    #[ignore = "is run by a_child_answers_for_a_process_with_one_thread_as_far_as_it_can"]
    fn a_child_answers() {
        // The test's other thread waits for this one, and holds no lock.
        let question: Arc<Question> = Arc::new(|path: &Path| {
            if path.ends_with("stays") {
                std::thread::sleep(LONG);
            }
            std::process::id().to_string().into_bytes()
        });
        let mut got = Vec::new();
        let paths = paths(&["first", "stays", "last"]);
        by_child(&paths, Instant::now() + SOON * 40, &question, |at, answer| got.push((at, answer.unwrap())));
        got.sort();
        let [(0, first), (2, last)] = &got[..] else { panic!("{got:?}") };
        assert_eq!(first, last);
        assert_ne!(*first, std::process::id().to_string().into_bytes());
    }

    #[test]
    fn work_that_goes_on_may_take_longer() {
        let path = &paths(&["goes-on"])[0];
        let limit = SOON * 10;
        let work = move |progress: &Progress| {
            let begun = Instant::now();
            while begun.elapsed() < limit * 2 {
                std::thread::sleep(Duration::from_millis(1));
                progress.tell();
            }
            4
        };
        assert_eq!(within_of_progress(path, limit, work).unwrap(), 4);
    }

    #[test]
    fn a_panic_of_the_work_is_the_callers() {
        let path = &paths(&["panics"])[0];
        let caught = std::panic::catch_unwind(|| within(path, LONG, || panic!("on purpose")));
        assert!(caught.is_err());
        assert_eq!(within(path, LONG, || 3).unwrap(), 3, "the path is free again");
    }
}
