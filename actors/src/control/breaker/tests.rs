//! Takes a breaker through all of its states, with a manual clock.

use super::*;

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_start(Duration::from_secs(1_000 + seconds))
}

fn rules() -> Rules {
    Rules {
        failures_max: 3,
        error_share_max: 0.5,
        calls_min: 10,
        window: Duration::from_secs(60),
        cool_down: Duration::from_secs(30),
        cool_down_max: Duration::from_secs(100),
        probes: 1,
        release_max: 4,
    }
}

fn call(breaker: &mut Breaker, report: Report, now: Monotonic) -> bool {
    let Verdict::Pass(generation) = breaker.ask(&rules(), now) else { panic!("refused") };
    let changed = breaker.report(generation, report, &rules(), now);
    breaker.over(generation);
    changed
}

fn opened(now: Monotonic) -> Breaker {
    let mut breaker = Breaker::new(&rules(), now);
    assert!(!call(&mut breaker, Report::Bad, now));
    assert!(!call(&mut breaker, Report::Bad, now));
    assert!(call(&mut breaker, Report::Bad, now));
    breaker
}

#[test]
fn consecutive_failures_open_it_and_a_success_resets_the_count() {
    let mut breaker = Breaker::new(&rules(), at(0));
    for report in [Report::Bad, Report::Bad, Report::Good, Report::Bad, Report::Silent, Report::Bad] {
        assert!(!call(&mut breaker, report, at(0)));
    }
    assert_eq!(breaker.state(at(0)), BreakerState::Closed);
    assert!(call(&mut breaker, Report::Bad, at(0)));
    assert_eq!(breaker.state(at(0)), BreakerState::Open);
    assert_eq!(breaker.cause(), Some(Cause::Failures));
    let refused = Verdict::Refused(Some(Duration::from_secs(20)));
    assert_eq!(breaker.ask(&rules(), at(10)), refused);
}

#[test]
fn too_large_a_share_of_failures_within_the_window_opens_it() {
    let mixed = |spread: u64| {
        let mut breaker = Breaker::new(&rules(), at(0));
        (0..5_u64).any(|n| {
            let now = at(n * spread);
            assert!(!call(&mut breaker, Report::Good, now));
            call(&mut breaker, Report::Bad, now)
        })
    };
    assert!(mixed(1), "five of ten within five seconds");
    assert!(!mixed(20), "never more than six calls within a minute");
}

#[test]
fn after_cool_down_single_probes_close_it_step_by_step() {
    let mut breaker = opened(at(0));
    assert_eq!(breaker.state(at(30)), BreakerState::HalfOpen);
    let Verdict::Pass(probe) = breaker.ask(&rules(), at(30)) else { panic!("the probe was refused") };
    assert!(matches!(breaker.ask(&rules(), at(30)), Verdict::Refused(Some(_))));
    assert!(!breaker.report(probe, Report::Good, &rules(), at(30)));
    breaker.over(probe);
    assert_eq!(breaker.state(at(30)), BreakerState::Releasing);
    let two: Vec<_> = (0..3).map(|_| breaker.ask(&rules(), at(31))).collect();
    assert!(matches!(two[..], [Verdict::Pass(_), Verdict::Pass(_), Verdict::Refused(_)]), "{two:?}");
    breaker.over(probe);
    breaker.over(probe);
    assert!(!call(&mut breaker, Report::Good, at(32)));
    assert!(!call(&mut breaker, Report::Good, at(32)));
    let closed: Vec<_> = (0..4).map(|_| call(&mut breaker, Report::Good, at(33))).collect();
    assert_eq!(closed, [false, false, false, true]);
    assert_eq!(breaker.state(at(33)), BreakerState::Closed);
}

#[test]
fn a_probe_that_fails_opens_it_for_longer_up_to_a_bound() {
    let (mut breaker, mut now) = (opened(at(0)), 0);
    for seconds in [30, 60, 100, 100] {
        assert_eq!(breaker.left(at(now)), Some(Duration::from_secs(seconds)));
        now += seconds;
        assert!(call(&mut breaker, Report::Bad, at(now)));
        assert_eq!(breaker.cause(), Some(Cause::Probe));
    }
}

#[test]
fn a_call_from_before_it_opened_does_not_speak_about_after() {
    let mut breaker = Breaker::new(&rules(), at(0));
    let Verdict::Pass(before) = breaker.ask(&rules(), at(0)) else { panic!("refused") };
    for _ in 0..3 {
        breaker.report(before, Report::Bad, &rules(), at(0));
    }
    assert!(!breaker.report(before, Report::Good, &rules(), at(1)));
    assert_eq!(breaker.state(at(1)), BreakerState::Open);
    let Verdict::Pass(_) = breaker.ask(&rules(), at(30)) else { panic!("the probe was refused") };
    breaker.over(before);
    assert!(
        matches!(breaker.ask(&rules(), at(30)), Verdict::Refused(_)),
        "the probe's place was not given away"
    );
}

#[test]
fn what_a_person_opened_only_a_person_closes() {
    let mut breaker = Breaker::new(&rules(), at(0));
    breaker.trip(at(0), None);
    assert_eq!(breaker.ask(&rules(), at(1_000_000)), Verdict::Refused(None));
    assert_eq!(breaker.state(at(1_000_000)), BreakerState::Open);
}

#[test]
fn a_breaker_opened_for_a_while_lasts_over_a_restart() {
    let hours = Duration::from_secs(7_200);
    let mut breaker = Breaker::new(&rules(), at(0));
    breaker.trip(at(0), Some(hours));
    assert_eq!(breaker.left(at(0)), Some(hours));
    assert_eq!(breaker.cause(), Some(Cause::OperatorFor));
    let kept = Kept { left: Some(hours), cool_down: hours, cause: Cause::OperatorFor };
    let mut again = Breaker::kept(&rules(), &kept, at(0));
    for one in [&mut breaker, &mut again] {
        assert!(matches!(one.ask(&rules(), at(7_199)), Verdict::Refused(Some(_))));
        assert!(matches!(one.ask(&rules(), at(7_200)), Verdict::Pass(_)), "then a probe passes");
    }
}

#[test]
fn a_restored_breaker_resumes_with_no_more_than_was_left() {
    let kept = |left: u64| Kept {
        left: Some(Duration::from_secs(left)),
        cool_down: Duration::from_secs(60),
        cause: Cause::Probe,
    };
    let left = |seconds| Breaker::kept(&rules(), &kept(seconds), at(0)).left(at(0));
    assert_eq!(left(7), Some(Duration::from_secs(7)));
    assert_eq!(left(5_000), Some(Duration::from_secs(60)), "the wall clock was put back");
    assert_eq!(Breaker::kept(&rules(), &kept(0), at(0)).state(at(0)), BreakerState::HalfOpen);
}
