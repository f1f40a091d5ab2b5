//! Serving a session: by threads on /dev/fuse, or by one thread for each queue of io_uring.

use std::io;

use crate::session::{Config, Handler, Session};
use crate::uring::Queues;
use crate::workers;

impl<H: Handler> Session<H> {
    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// The connection failed, or a thread could not be started.
    pub fn run(&self, config: Config) -> io::Result<()> {
        if self.has_rings() { self.run_rings() } else { workers::run(self, config) }
    }

    /// One thread for each queue; this thread serves the requests that still arrive on /dev/fuse.
    fn run_rings(&self) -> io::Result<()> {
        let queues = Queues::new(self)?;
        std::thread::scope(|scope| {
            for number in 0..queues.count() {
                let queues = &queues;
                let serve = move || queues.serve(self, number);
                let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
                if let Err(error) = thread.spawn_scoped(scope, serve) {
                    queues.fail(error);
                }
            }
            // Without it all threads keep the normal policy.
            let watcher = std::thread::Builder::new().name("fuse-watch".to_owned());
            let _ = watcher.spawn_scoped(scope, || queues.watch());
            let mut buffer = vec![0; self.buffer_len()];
            // If one queue fails, the kernel sends no more requests.
            while !queues.have_failed() {
                self.connection().wait(queues.alarm());
                if queues.have_failed() {
                    break;
                }
                match self.connection().read(&mut buffer) {
                    Ok(Some(len)) => self.answer(&buffer[..len], self.begin(&buffer[..len])),
                    Ok(None) => break,
                    Err(error) => queues.fail(error),
                }
            }
            queues.end_watch();
        });
        queues.into_result()
    }
}
