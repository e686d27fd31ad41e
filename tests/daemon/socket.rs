//! The socket file, after it is removed or replaced.

use std::os::unix::fs::MetadataExt;

use crate::harness::{Place, Serving, until};

#[test]
fn a_socket_is_made_only_in_a_folder_that_exists() {
    let place = Place::seeded();
    let refused = place.effectd(&["serve", "--state", ".effectd", "--socket", "missing/a/s.sock"], None);
    assert_eq!(refused.code(), 69, "{}", refused.stderr());
    assert!(refused.stderr().contains("there is no folder"), "{}", refused.stderr());
    assert!(!place.path("missing").exists());
    // The state's own folder is the daemon's.
    let own = place.state().join("run/own.sock");
    let daemon = place.serve(&["--socket", own.to_str().unwrap()]);
    assert!(own.exists());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_removed_socket_comes_back_and_nothing_else_is_replaced() {
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "gateway.socket_mode=0660"]);
    let socket = place.socket();
    std::fs::remove_file(&socket).unwrap();
    until("the socket is there again", || daemon.answers("GET", "/readyz"));
    assert_eq!(std::fs::metadata(&socket).unwrap().mode() & 0o777, 0o660);
    assert!(place.log().contains("the socket was removed and has been created again"));
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "somebody's").unwrap();
    let complaint = "there is another file at the socket's path";
    until("the log says why nobody gets in", || place.log().contains(complaint));
    assert_eq!(std::fs::read(&socket).unwrap(), b"somebody's");
    std::fs::remove_file(&socket).unwrap();
    until("the socket is there again", || daemon.answers("GET", "/readyz"));
    assert_eq!(place.log().matches(complaint).count(), 1, "it is said once");
    assert_eq!(daemon.stop(), 0);
    assert!(!socket.exists(), "the socket goes with its daemon");
}
