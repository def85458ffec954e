//! Comments that ask for a picture, and the tables behind them.

use super::chart::{Chart, Group, Panel, Scale, Value};

const BEGIN: &str = "<!-- plot ";
/// As many as there are colours.
const SERIES_MAX: usize = 6;

/// A comment of a page.
pub(super) struct Found {
    /// Line of its begin, from 1.
    pub(super) line: usize,
    /// The picture, relative to the page.
    pub(super) target: String,
    pub(super) chart: Result<Chart, String>,
}

/// All of a page, but for what is within fences.
pub(super) fn find(text: &str) -> Vec<Found> {
    let mut lines = text.lines().enumerate();
    let mut found = Vec::new();
    let mut is_fenced = false;
    while let Some((at, line)) = lines.next() {
        is_fenced ^= line.trim_start().starts_with("```");
        let Some(target) = line.strip_prefix(BEGIN).filter(|_| !is_fenced) else {
            continue;
        };
        let keys: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| line.trim() != "-->")
            .collect();
        let rest = lines.clone().map(|(_, line)| line);
        found.push(Found {
            line: at + 1,
            target: target.trim().to_owned(),
            chart: chart(&keys, &Table::first_of(rest)),
        });
    }
    found
}

struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn first_of<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut rows = lines
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .map(cells);
        let head = rows.next().unwrap_or_default();
        // The second row only says how columns are set.
        let rows = rows.skip(1).collect();
        Self { head, rows }
    }

    /// The cell in a column that counts from 1.
    fn cell<'a>(&self, row: &'a [String], column: usize) -> Result<&'a str, String> {
        column
            .checked_sub(1)
            .and_then(|at| row.get(at))
            .map(String::as_str)
            .ok_or_else(|| {
                format!(
                    "the table has {} columns, and no column {column}",
                    self.head.len()
                )
            })
    }
}

fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|')
        .map(|cell| cell.trim().replace('`', ""))
        .collect()
}

/// Who is compared.
enum Series {
    /// Names stand in a column.
    Column(usize),
    /// Each has a column.
    Named(Vec<(String, usize)>),
}

fn chart(keys: &[&str], table: &Table) -> Result<Chart, String> {
    if table.rows.is_empty() {
        return Err("no table follows".to_owned());
    }
    let (mut title, mut groups, mut series) = (None, None, None);
    let (mut panels, mut only, mut scale) = (Vec::new(), None::<Vec<String>>, Scale::Times);
    for line in keys {
        let (key, value) = line
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
            .ok_or_else(|| format!("`{line}` is not `key: value`"))?;
        match key {
            "title" => title = Some(value.to_owned()),
            "groups" => groups = Some(column(value)?),
            "series" => series = Some(series_of(value)?),
            "panels" => {
                panels = value
                    .split_whitespace()
                    .map(column)
                    .collect::<Result<_, _>>()?;
            }
            "rows" => only = Some(value.split('|').map(|n| n.trim().to_owned()).collect()),
            "scale" => {
                scale = match value {
                    "times" => Scale::Times,
                    "plain" => Scale::Plain,
                    _ => return Err(format!("scale is `times` or `plain`, not `{value}`")),
                }
            }
            _ => return Err(format!("no such key: `{key}`")),
        }
    }
    let groups = groups.ok_or("`groups` is missing")?;
    let (series, panels) = match series.ok_or("`series` is missing")? {
        Series::Column(names) => by_rows(table, groups, names, &panels, only.as_deref())?,
        Series::Named(_) if !panels.is_empty() || only.is_some() => {
            return Err("`panels` and `rows` go with a column of names".to_owned());
        }
        Series::Named(columns) => by_columns(table, groups, &columns)?,
    };
    let chart = Chart {
        title: title.ok_or("`title` is missing")?,
        scale,
        series,
        panels,
    };
    if chart.series.len() > SERIES_MAX {
        return Err(format!("more than {SERIES_MAX} series"));
    }
    if chart.numbers().next().is_none() {
        return Err("nothing to draw".to_owned());
    }
    let has_place = |n: f64| n > 0.0 || n == 0.0 && scale == Scale::Plain;
    if !chart.numbers().all(has_place) {
        return Err("a ratio is above 0, any number at least 0".to_owned());
    }
    Ok(chart)
}

fn column(value: &str) -> Result<usize, String> {
    let number = value.trim().parse().ok().filter(|&n| n > 0);
    number.ok_or_else(|| format!("`{value}` is no column; the first one is 1"))
}

fn series_of(value: &str) -> Result<Series, String> {
    if !value.contains('=') {
        return column(value).map(Series::Column);
    }
    let named = value.split('|').map(|part| {
        let (name, number) = part
            .rsplit_once('=')
            .ok_or_else(|| format!("`{part}` is not `Name=column`"))?;
        Ok((name.trim().to_owned(), column(number)?))
    });
    named.collect::<Result<_, String>>().map(Series::Named)
}

fn by_rows(
    table: &Table,
    groups: usize,
    names: usize,
    panels: &[usize],
    only: Option<&[String]>,
) -> Result<(Vec<String>, Vec<Panel>), String> {
    if panels.is_empty() {
        return Err("`panels` is missing".to_owned());
    }
    // Rows in their order, each with its group.
    let mut rows = Vec::new();
    let mut group = String::new();
    let mut series = only.unwrap_or_default().to_vec();
    for row in &table.rows {
        let named = table.cell(row, groups)?;
        if !named.is_empty() {
            named.clone_into(&mut group);
        }
        let name = table.cell(row, names)?.to_owned();
        if only.is_none() && !series.contains(&name) {
            series.push(name.clone());
        }
        rows.push((group.clone(), name, row));
    }
    for name in &series {
        if !rows.iter().any(|(_, of, _)| of == name) {
            return Err(format!("no row is of `{name}`"));
        }
    }
    let mut drawn = Vec::new();
    for &panel in panels {
        let mut all: Vec<Group> = Vec::new();
        for (group, name, row) in &rows {
            let Some(at) = series.iter().position(|s| s == name) else {
                continue;
            };
            if all.last().is_none_or(|last| last.name != *group) {
                all.push(Group {
                    name: group.clone(),
                    values: vec![None; series.len()],
                });
            }
            if let Some(last) = all.last_mut() {
                if last.values[at].is_some() {
                    return Err(format!("two rows are of `{group}` and `{name}`"));
                }
                last.values[at] = value(table.cell(row, panel)?)?;
            }
        }
        drawn.push(Panel {
            name: table.cell(&table.head, panel)?.to_owned(),
            groups: all,
        });
    }
    Ok((series, drawn))
}

fn by_columns(
    table: &Table,
    groups: usize,
    columns: &[(String, usize)],
) -> Result<(Vec<String>, Vec<Panel>), String> {
    let mut all = Vec::new();
    for row in &table.rows {
        let values = columns
            .iter()
            .map(|&(_, column)| value(table.cell(row, column)?))
            .collect::<Result<_, String>>()?;
        all.push(Group {
            name: table.cell(row, groups)?.to_owned(),
            values,
        });
    }
    let panel = Panel {
        name: String::new(),
        groups: all,
    };
    let names = columns.iter().map(|(name, _)| name.clone()).collect();
    Ok((names, vec![panel]))
}

/// The number that a cell tells: the one with a spread, else the first; none of an empty cell.
fn value(cell: &str) -> Result<Option<Value>, String> {
    if cell.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("no number in the cell `{cell}`");
    if let Some((before, behind)) = cell.split_once('(')
        && let Some((least, most)) = behind
            .split_once(')')
            .and_then(|(spread, _)| spread.split_once(".."))
    {
        let middle = before.split_whitespace().next_back().and_then(number);
        let spread = number(least.trim()).zip(number(most.trim()));
        let (middle, spread) = middle.zip(spread).ok_or_else(wrong)?;
        if !(spread.0 <= middle && middle <= spread.1) {
            return Err(format!(
                "the cell `{cell}` has its middle out of its spread"
            ));
        }
        return Ok(Some(Value {
            middle,
            spread: Some(spread),
        }));
    }
    let mut words = cell.split_whitespace();
    let middle = words.next().and_then(number).ok_or_else(wrong)?;
    if words.next().and_then(number).is_some() {
        return Err(format!("two numbers in the cell `{cell}`, and no spread"));
    }
    Ok(Some(Value {
        middle,
        spread: None,
    }))
}

fn number(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches([',', ';']).replace(',', "");
    digits.parse().ok().filter(|n: &f64| n.is_finite())
}
