//! The screen as a function of the view and the facts.

use anstyle::{Effects, Style};
use genv_core::lab::{USER_COLLECTORS, models, unknown_hosts};
use genv_core::text::harmless;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use unicode_width::UnicodeWidthStr as _;

use super::enforcer::Against;
use super::grid::{Form, GAP, Grid, Value};
use super::tabs::Facts;
use super::view::{Page, Tab, View};
use crate::output::{BAD, DOUBTFUL, GOOD, counted, fit};

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().bold();
const MARKED: Style = Style::new().effects(Effects::INVERT);
const FAINT: Style = Style::new().effects(Effects::DIMMED);

/// The heights from which the tabs and the keys are shown.
const TABS_FROM: u16 = 8;
const KEYS_FROM: u16 = 12;

/// The width of the title that is left for what is free and broken, before hosts and time are shown.
const WIDE_TITLE: usize = 40;

const KEYS: &str = "Enter open  / filter  s sort  r reverse  t trouble  ! enforcer  ? help  q quit";

/// The levels of a graph.
const LEVELS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// A sample that was not measured.
const UNKNOWN_LEVEL: &str = "·";

/// What is shown besides the table.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) facts: Facts<'a>,
    pub(super) against: &'a Against,
    /// When the facts arrived, Unix time; absent before the first.
    pub(super) received_seconds: Option<f64>,
    /// What is waited for before the first facts.
    pub(super) awaited: &'a str,
}

/// Draws the view. `grid` has all rows of its tab; returns the shown ones.
pub(super) fn draw(buffer: &mut Buffer, view: &mut View, frame: &Frame<'_>, mut grid: Grid) -> Grid {
    view.arrange(&mut grid);
    let area = buffer.area;
    let mut rest = area;
    title(buffer, take_top(&mut rest), frame);
    if area.height >= TABS_FROM {
        tabs(buffer, take_top(&mut rest), view);
    }
    if area.height >= KEYS_FROM {
        put(buffer, take_bottom(&mut rest), KEYS, FAINT);
    }
    if let Some(line) = &frame.against.line
        && area.height >= TABS_FROM
    {
        put(buffer, take_bottom(&mut rest), &format!("Enforcer: {line}"), DOUBTFUL);
    }
    if view.is_editing {
        put(buffer, take_bottom(&mut rest), &format!("Filter: {}_", harmless(&view.place.filter)), BOLD);
    } else if !view.place.filter.is_empty() {
        let text = format!("Filter: {} (Esc: all)", harmless(&view.place.filter));
        put(buffer, take_bottom(&mut rest), &text, DOUBTFUL);
    }
    match view.page {
        Some(page) => text(buffer, rest, view, &page_lines(page, frame)),
        None => {
            view.settle(&grid, rest.height.saturating_sub(1).into());
            match grid.rows.is_empty() {
                true => text(buffer, rest, view, &no_rows(view, frame)),
                false => table(buffer, take_top(&mut rest), rest, view, &grid),
            }
        }
    }
    grid
}

/// Removes the first line of an area.
fn take_top(rest: &mut Rect) -> Rect {
    let line = Rect { height: rest.height.min(1), ..*rest };
    rest.y += line.height;
    rest.height -= line.height;
    line
}

/// Removes the last line of an area.
fn take_bottom(rest: &mut Rect) -> Rect {
    let height = rest.height.min(1);
    rest.height -= height;
    Rect { y: rest.y + rest.height, height, ..*rest }
}

/// Writes a text into a line of the screen, and cuts it there. Returns the rest of the line.
fn put(buffer: &mut Buffer, line: Rect, text: &str, style: Style) -> Rect {
    if line.is_empty() {
        return line;
    }
    let mut text = text.to_owned();
    fit(&mut text, line.width.into());
    let (x, _) = buffer.set_stringn(line.x, line.y, text, line.width.into(), style);
    Rect { x, width: line.right() - x, ..line }
}

/// Hosts and time, whether values are simulated, the number of faults, and what is free by model: without hosts and time
/// where there is little room.
fn title(buffer: &mut Buffer, line: Rect, frame: &Frame<'_>) {
    let hosts = frame.facts.hosts;
    let Some(received) = frame.received_seconds else {
        put(buffer, line, &format!("genv top  {}…", frame.awaited), BOLD);
        return;
    };
    let down = hosts.iter().filter(|it| !it.up).count();
    let named = match hosts {
        [host] => harmless(&host.hostname),
        _ if down > 0 => format!("{}, {down} down", counted(hosts.len(), "host")),
        _ => counted(hosts.len(), "host"),
    };
    let models = models(hosts);
    let mut models: Vec<_> = models.iter().collect();
    models.sort_by_key(|(_, totals)| totals.free == 0);
    let mut free = models.into_iter().map(|(model, totals)| {
        let unknown = if totals.unknown > 0 { format!("+{}?", totals.unknown) } else { String::new() };
        let style = if totals.free > 0 { GOOD } else { PLAIN };
        (format!("{}{unknown}/{} {}", totals.free, totals.all, harmless(model)), style)
    });
    let mut parts: Vec<(String, Style)> =
        free.next().map(|(text, style)| (format!("free {text}"), style)).into_iter().collect();
    parts.extend(free);
    let troubles = frame.facts.troubles().len();
    if troubles > 0 {
        parts.insert(0, (counted(troubles, "trouble"), BAD));
    }
    if frame.facts.is_simulated() {
        parts.insert(0, ("simulated".to_owned(), FAINT));
    }
    let head = format!("{named}  {}", clock(received, frame.facts.zone));
    if usize::from(line.width) >= WIDE_TITLE + head.width() {
        parts.insert(0, (head, BOLD));
    }
    let mut line = line;
    for (text, style) in parts {
        line = put(buffer, line, &text, style);
        line = put(buffer, line, "  ", PLAIN);
    }
}

/// `12:34:56`.
fn clock(seconds: f64, zone: &TimeZone) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let time = Timestamp::from_second(seconds as i64).unwrap_or_default();
    time.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string()
}

/// The names of the tables; of a part of one, what it belongs to.
fn tabs(buffer: &mut Buffer, mut line: Rect, view: &View) {
    if let Some(scope) = &view.place.scope {
        put(buffer, line, &format!("[{} of {}] Esc: back", view.place.tab.name(), scope.words()), BOLD);
        return;
    }
    for (tab, number) in Tab::ALL.into_iter().zip(1..) {
        let (text, style) = match tab == view.place.tab {
            true => (format!("[{number} {}]", tab.name()), BOLD),
            false => (format!(" {number} {} ", tab.name()), FAINT),
        };
        line = put(buffer, line, &text, style);
    }
}

fn table(buffer: &mut Buffer, header: Rect, body: Rect, view: &View, grid: &Grid) {
    let sorting = view.sorting();
    // The first column of the screen marks the selected row.
    let room = usize::from(body.width.saturating_sub(1));
    let layout = grid.layout(room, GAP, sorting.column);
    let mut x = header.x + 1;
    for (column, width) in &layout {
        let column = grid.columns[*column];
        let arrow = if (column.form == Form::Number) != sorting.is_reversed { "▼" } else { "▲" };
        let arrow = if sorting.column == Some(column.name) { arrow } else { "" };
        let name = format!("{}{arrow}", column.name);
        cell(buffer, header, x, *width, &name, BOLD, column.form);
        x = next(x, *width);
    }
    let shown = grid.rows.iter().enumerate().skip(view.top);
    for ((position, row), y) in shown.zip(body.top()..body.bottom()) {
        let line = Rect { y, height: 1, ..body };
        let is_selected = position == view.position;
        let mut x = body.x + 1;
        for (column, width) in &layout {
            let value = &row.values[*column];
            match grid.columns[*column].form {
                Form::Graph(_) => graph(buffer, line, x, *width, value),
                form => cell(buffer, line, x, *width, &value.text, value.style, form),
            }
            x = next(x, *width);
        }
        if is_selected {
            put(buffer, line, ">", PLAIN);
            buffer.set_style(line, MARKED);
        }
    }
}

/// The start of the column after one at `x`.
fn next(x: u16, width: usize) -> u16 {
    x.saturating_add(u16::try_from(width + GAP).unwrap_or(u16::MAX))
}

/// Writes the text of a cell, shortened to its width.
fn cell(buffer: &mut Buffer, line: Rect, x: u16, width: usize, text: &str, style: Style, form: Form) {
    let mut text = text.to_owned();
    fit(&mut text, width);
    let blank = if form == Form::Number { width - text.width().min(width) } else { 0 };
    let x = x.saturating_add(u16::try_from(blank).unwrap_or(u16::MAX));
    if x < line.right() {
        put(buffer, Rect { x, width: line.right() - x, ..line }, &text, style);
    }
}

/// Draws the newest samples, with the last one at the right.
fn graph(buffer: &mut Buffer, line: Rect, x: u16, width: usize, value: &Value) {
    let newest = value.samples.iter().rev().take(width);
    let levels = newest.map(|sample| sample.map_or(UNKNOWN_LEVEL, level));
    let mut levels: Vec<&str> = levels.collect();
    levels.resize(width, " ");
    levels.reverse();
    cell(buffer, line, x, width, &levels.concat(), PLAIN, Form::Graph(width));
}

fn level(sample: f32) -> &'static str {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 7")]
    let level = (sample.clamp(0.0, 1.0) * 7.0).round() as usize;
    LEVELS[level]
}

/// Writes lines, wrapped, from the one to which the view is scrolled.
fn text(buffer: &mut Buffer, area: Rect, view: &mut View, lines: &[String]) {
    let lines: Vec<String> = lines.iter().flat_map(|line| wrapped(line, area.width.into())).collect();
    let height = usize::from(area.height);
    view.scroll = view.scroll.min(lines.len().saturating_sub(height));
    for (line, y) in lines.iter().skip(view.scroll).zip(area.top()..area.bottom()) {
        put(buffer, Rect { y, height: 1, ..area }, line, PLAIN);
    }
}

/// The lines of a text that are at most this wide, with the indentation of its first line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    if text.width() <= width {
        return vec![text.to_owned()];
    }
    let indentation = text.len() - text.trim_start().len();
    let mut lines = vec![" ".repeat(indentation)];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| line.trim().is_empty() || line.width() + 1 + word.width() <= width);
        match line {
            Some(line) => {
                let space = if line.trim().is_empty() { "" } else { " " };
                line.push_str(space);
                line.push_str(word);
            }
            None => lines.push(format!("{}{word}", " ".repeat(indentation))),
        }
    }
    lines
}

/// Why the table has no rows.
fn no_rows(view: &View, frame: &Frame<'_>) -> Vec<String> {
    let tab = view.place.tab.name();
    if frame.received_seconds.is_none() {
        return vec![format!("{}…", frame.awaited)];
    }
    if !view.place.filter.is_empty() {
        return vec![format!("No row contains '{}'. Esc shows all.", harmless(&view.place.filter))];
    }
    let collectors: &[&str] = match view.place.tab {
        Tab::Devices => &["gpu"],
        Tab::Environments => &["state"],
        Tab::Users => &USER_COLLECTORS,
        Tab::Processes => &["gpu", "processes"],
        Tab::Hosts => &[],
    };
    let facts = frame.facts;
    let ending = if unknown_hosts(facts.hosts, collectors) == 0 { "now" } else { "are known" };
    if let Some(scope) = &view.place.scope {
        return vec![format!("No {tab} of {} {ending}. Esc goes back.", scope.words())];
    }
    let mut lines = vec![match view.place.tab {
        Tab::Devices => "No GPU is known.".to_owned(),
        _ => format!("No {tab} {ending}."),
    }];
    lines.extend(facts.troubles());
    if view.place.tab == Tab::Devices {
        lines.push("'genv doctor' checks the driver and the rest of a machine.".to_owned());
    }
    lines
}

fn page_lines(page: Page, frame: &Frame<'_>) -> Vec<String> {
    match page {
        Page::Help => HELP.lines().map(str::to_owned).collect(),
        Page::Troubles => match &frame.facts.troubles()[..] {
            [] => vec!["No trouble is known.".to_owned()],
            lines => lines.to_vec(),
        },
        Page::Enforcer => frame.against.page.clone(),
    }
}

/// Lines of at most 80 columns, since a wrapped line loses its indentation.
pub(super) const HELP: &str = "\
d e u p h, 1-5  devices, environments, users, processes, hosts; Tab: the next
↑ ↓ j k         select a row; also PgUp, PgDn, Home, End
Enter           from a device to its holders, from these to their processes
Esc, Backspace  back
/               show the rows that contain a text; Esc: all
s  r            sort by the next column; reverse
t  !            what is broken; what the enforcer has against you
Ctrl-L  Ctrl-Z  draw anew; suspend
q, Ctrl-C       quit

?               not measured, or not known
IDLE            for how long no holder has used it; '>5m': no use was seen in
                5 minutes, and earlier use is not known
OUTSIDE         processes in no environment; with '?' those that may be
HISTORY         utilization at the last updates; · is not known
MEMORY          memory in use at the last updates
UTIL            of an environment: the mean of its GPUs
BUSY, GPU TIME, ENERGY
                of a user, since the collection began";
