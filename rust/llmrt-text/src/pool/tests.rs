use std::{
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use super::*;

const LONG: usize = 1000;

fn tokenizer() -> Tokenizer {
    let json = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,
        "decoder":null,"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}}"#;
    Tokenizer::from_json(json.as_bytes()).unwrap()
}

fn pool(threads: usize, queue: usize) -> TokenizerPool {
    let options = PoolOptions {
        threads,
        queue,
        long: LONG,
    };
    TokenizerPool::new(tokenizer(), options).unwrap()
}

/// Waits on a current-thread runtime, as an I/O thread does.
fn wait<R>(pending: Pending<R>) -> Result<R, PoolError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let limit = Duration::from_secs(60);
    runtime.block_on(async {
        tokio::time::timeout(limit, pending)
            .await
            .expect("the job ends")
    })
}

/// A job that says when it has begun and ends when it is told to.
struct Blocked {
    pending: Pending<()>,
    begun: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
}

fn block(pool: &TokenizerPool, size: usize) -> Blocked {
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let job = move |_: &Tokenizer| {
        let _ = begin.send(());
        let _ = released.recv();
    };
    let pending = pool.submit(size, job).unwrap();
    Blocked {
        pending,
        begun,
        release,
    }
}

#[test]
fn jobs_run_with_the_tokenizer_on_named_threads() {
    let pool = pool(3, 8);
    let job = |tokenizer: &Tokenizer| {
        let name = thread::current().name().map(str::to_owned);
        (tokenizer.encode("abab", false).unwrap(), name.unwrap())
    };
    let (ids, name) = wait(pool.submit(4, job).unwrap()).unwrap();
    assert_eq!(ids, [2, 2]);
    assert!(name.starts_with("tokenizer-"), "{name}");
}

#[test]
fn long_jobs_leave_one_thread_to_short_ones() {
    for threads in 1..4 {
        let pool = pool(threads, 64);
        let running: Vec<Blocked> = (1..threads.max(2)).map(|_| block(&pool, LONG)).collect();
        for long in &running {
            long.begun.recv().unwrap();
        }
        let waiting = block(&pool, LONG);
        for _ in 0..20 {
            assert_eq!(wait(pool.submit(1, |_| 7).unwrap()), Ok(7));
        }
        assert!(
            waiting.begun.try_recv().is_err(),
            "the reserved thread took a long job"
        );
        drop(running);
        waiting.begun.recv().unwrap();
        waiting.release.send(()).unwrap();
        assert_eq!(wait(waiting.pending), Ok(()));
    }
}

#[test]
fn each_queue_is_bounded_by_itself() {
    let pool = pool(2, 2);
    let running = [block(&pool, LONG), block(&pool, 1)];
    for job in &running {
        job.begun.recv().unwrap();
    }
    let long: Vec<_> = (0..2).map(|_| pool.submit(LONG, |_| ()).unwrap()).collect();
    assert_eq!(pool.submit(LONG, |_| ()).unwrap_err(), PoolError::Full);
    let short: Vec<_> = (0..2)
        .map(|_| pool.submit(LONG - 1, |_| ()).unwrap())
        .collect();
    assert_eq!(pool.submit(0, |_| ()).unwrap_err(), PoolError::Full);
    assert_eq!(pool.queued(), (2, 2));
    drop(running);
    for pending in long.into_iter().chain(short) {
        assert_eq!(wait(pending), Ok(()));
    }
}

#[test]
fn a_job_whose_caller_left_is_skipped() {
    let pool = pool(2, 8);
    let running = [block(&pool, 1), block(&pool, 1)];
    for job in &running {
        job.begun.recv().unwrap();
    }
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    drop(
        pool.submit(1, move |_| flag.store(true, Ordering::SeqCst))
            .unwrap(),
    );
    let after = pool.submit(1, |_| ()).unwrap();
    drop(running);
    wait(after).unwrap();
    drop(pool);
    assert!(!ran.load(Ordering::SeqCst));
}

#[test]
fn a_panic_is_an_error_for_its_caller_alone() {
    let pool = pool(2, 64);
    for size in [1, LONG] {
        for _ in 0..10 {
            let bad = pool
                .submit(size, |_| -> u8 { panic!("bad prompt") })
                .unwrap();
            assert_eq!(wait(bad), Err(PoolError::Panicked("bad prompt".into())));
            assert_eq!(wait(pool.submit(size, |_| 1).unwrap()), Ok(1));
        }
    }
}

#[test]
fn dropping_the_pool_ends_running_jobs_and_refuses_waiting_ones() {
    let pool = pool(2, 8);
    let running = [block(&pool, 1), block(&pool, 1)];
    for job in &running {
        job.begun.recv().unwrap();
    }
    let waiting = pool.submit(1, |_| ()).unwrap();
    let closing = thread::spawn(move || drop(pool));
    assert_eq!(wait(waiting), Err(PoolError::Closed));
    assert!(
        !closing.is_finished(),
        "the pool did not wait for its running jobs"
    );
    for job in running {
        job.release.send(()).unwrap();
        assert_eq!(wait(job.pending), Ok(()));
    }
    closing.join().unwrap();
}

#[test]
fn a_job_may_own_its_pool() {
    let pool = Arc::new(pool(2, 8));
    let (hand_over, handed) = mpsc::channel::<Arc<TokenizerPool>>();
    let job = move |_: &Tokenizer| drop(handed.recv());
    let pending = pool.submit(1, job).unwrap();
    hand_over.send(pool).unwrap();
    assert_eq!(wait(pending), Ok(()));
}

#[test]
fn many_threads_submit_at_once() {
    let pool = pool(3, 10_000);
    let done = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for caller in 0..4 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let submit = |turn| {
                    let size = if (caller + turn) % 3 == 0 { LONG } else { 1 };
                    let count = done.clone();
                    pool.submit(size, move |_| count.fetch_add(1, Ordering::SeqCst))
                        .unwrap()
                };
                let pending: Vec<_> = (0..500).map(submit).collect();
                for pending in pending {
                    wait(pending).unwrap();
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 2000);
}
