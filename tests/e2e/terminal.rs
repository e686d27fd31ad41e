//! Full-screen commands restore the terminal.

use std::time::Duration;

use effectd::internal::tui::ratatui::crossterm::event::KeyCode;
use effectd::internal::tui::ratatui::text::Line;
use effectd::internal::tui::{Event, Events, Screen, shown};

use crate::harness::*;

/// Tells this test program, started again in a terminal, to be the program in it.
const INSIDE: &str = "EFFECTD_TEST_INSIDE";

const HOSTILE: &str = "\x1b[2J\x1b]0;owned\x07\u{202e}hostile\u{9b}31m";

/// Takes the screen, shows hostile text, and ends as a key says.
fn inside() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut screen = Screen::take("nothing").unwrap();
        let mut events = Events::of_terminal(Duration::from_secs(1)).unwrap();
        loop {
            let drawn = screen.draw(|frame| {
                let width = frame.area().width.to_string();
                let text = shown(&format!("here {width} {HOSTILE}"), usize::from(frame.area().width));
                frame.render_widget(Line::raw(text), frame.area());
            });
            if drawn.is_err() {
                return;
            }
            match events.next().await {
                Event::Key(key) if key.code == KeyCode::Char('q') => return,
                Event::Key(key) if key.code == KeyCode::Char('p') => panic!("on purpose"),
                Event::Key(key) if key.code == KeyCode::Char('t') => {
                    let other = std::thread::spawn(|| panic!("in another thread, on purpose"));
                    assert!(other.join().is_err());
                }
                Event::Key(_) | Event::Resized | Event::Tick => {}
                Event::Stop => return,
            }
        }
    });
}

#[test]
fn a_terminal_is_given_back_however_a_program_ends() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let me = std::env::current_exe().unwrap();
    let me = me.to_str().unwrap();
    let test = "terminal::a_terminal_is_given_back_however_a_program_ends";
    // How it ends, and the exit code in its shell.
    let endings = [
        ("key q", "ended 0"),
        ("key p", "ended 101"),
        ("key t", "ended 0"),
        ("key C-c", "ended 0"),
        ("signal TERM", "ended 0"),
        ("signal HUP", "ended 0"),
        ("signal QUIT", "ended 0"),
    ];
    let place = Place::new();
    for (ending, said) in endings {
        // Without job control: a shell with it resets the terminal itself after a program.
        let script = format!(
            "stty -g >before; echo a line of before; \
             {INSIDE}=1 bash -c 'echo $$ >pid; exec \"{me}\" --exact {test} --nocapture'; \
             echo ended $?; stty -g >after; echo told; read line"
        );
        let terminal = Terminal::start(&place, &["bash", "-c", &script], 60, 40);
        let screen = terminal.wait_for("here 60");
        assert!(screen.contains("here 60 ␛[2J␛]0;owned␇‹U+202E›hostile‹U+009B›31m"), "{screen}");
        assert_eq!(terminal.knows("#{alternate_on}"), "1");
        assert!(!terminal.knows("#{pane_title}").contains("owned"));
        terminal.resize(40, 40);
        terminal.wait_for("here 40");
        match ending.split_once(' ').unwrap() {
            ("key", key) => terminal.press(&[key]),
            (_, signal) => {
                let pid = std::fs::read_to_string(place.path("pid")).unwrap();
                let sent = std::process::Command::new("kill").args(["-s", signal, pid.trim()]).status();
                assert!(sent.unwrap().success());
            }
        }
        let screen = terminal.wait_for("told");
        assert!(screen.contains(said), "{ending}: {screen}");
        assert!(screen.contains("a line of before"), "{ending}: {screen}");
        assert_eq!(terminal.knows("#{alternate_on} #{cursor_flag}"), "0 1", "{ending}");
        let [before, after] = ["before", "after"].map(|name| std::fs::read(place.path(name)).unwrap());
        assert_eq!(before, after, "{ending}");
    }
}

#[test]
fn without_a_terminal_nothing_is_taken_over() {
    let refused = Screen::take("`--once`").map(drop);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("needs a terminal"), "{refused}");
    assert!(refused.ends_with("for programs there is `--once`"), "{refused}");
}
