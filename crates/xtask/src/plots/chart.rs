//! What a picture shows.

/// A number with the least and the largest that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) middle: f64,
    pub(super) spread: Option<(f64, f64)>,
}

impl Value {
    pub(super) fn least(&self) -> f64 {
        self.spread.map_or(self.middle, |(least, _)| least)
    }

    pub(super) fn most(&self) -> f64 {
        self.spread.map_or(self.middle, |(_, most)| most)
    }
}

/// What is compared in one place: a value for each of the series, if it was measured.
#[derive(Debug, PartialEq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) values: Vec<Option<Value>>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Panel {
    pub(super) name: String,
    pub(super) groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Doublings, from 1.
    Times,
    /// From 0.
    Plain,
}

#[derive(Debug, PartialEq)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) scale: Scale,
    pub(super) series: Vec<String>,
    pub(super) panels: Vec<Panel>,
}

impl Chart {
    /// All numbers, spreads as well.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.panels
            .iter()
            .flat_map(|panel| &panel.groups)
            .flat_map(|group| group.values.iter().flatten())
            .flat_map(|value| [value.least(), value.middle, value.most()])
    }
}
