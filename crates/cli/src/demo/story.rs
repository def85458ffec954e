//! What the demo tells while it goes: prose for people, or facts for one JSON document.

use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::terminal::{Ink, Terminal};

/// Characters of a line of prose.
const LINE_WIDTH: usize = 88;

/// The demo's voice.
pub(super) struct Story<'a> {
    pub(super) terminal: &'a mut Terminal,
    facts: Map<String, Value>,
    begun: bool,
}

impl<'a> Story<'a> {
    pub(super) fn new(terminal: &'a mut Terminal) -> Self {
        Self {
            terminal,
            facts: Map::new(),
            begun: false,
        }
    }

    pub(super) fn heading(&mut self, title: &str) -> Result<(), Failure> {
        if self.begun {
            self.say("")?;
        }
        self.begun = true;
        let title = self.terminal.ink(Ink::Bold, title);
        self.say(&title)
    }

    /// A line, shown at once.
    pub(super) fn say(&mut self, line: &str) -> Result<(), Failure> {
        if !self.terminal.json {
            self.terminal.line(line)?;
            self.terminal.flush()?;
        }
        Ok(())
    }

    /// Lines of a width that reads well.
    pub(super) fn paragraph(&mut self, prose: &str) -> Result<(), Failure> {
        for line in wrap(prose, LINE_WIDTH) {
            self.say(&line)?;
        }
        self.say("")
    }

    /// A fact for the JSON document.
    pub(super) fn fact(&mut self, name: &str, value: Value) {
        self.facts.insert(name.to_owned(), value);
    }

    pub(super) fn end(self) -> Result<(), Failure> {
        if self.terminal.json {
            self.terminal.document(&Value::Object(self.facts))?;
        }
        Ok(())
    }
}

fn wrap(prose: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in prose.split_whitespace() {
        let line = lines.last_mut().expect("there is a line from the start");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn prose_is_wrapped_between_words() {
        assert_eq!(wrap("one two  three four", 9), ["one two", "three", "four"]);
        assert_eq!(wrap("overlongword x", 4), ["overlongword", "x"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
