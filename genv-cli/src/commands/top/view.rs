//! The state of the view, as a function of keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::grid::{Form, Grid, Key};

/// The largest number of characters of a filter.
const LONGEST_FILTER: usize = 60;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Devices,
    Environments,
    Users,
    Processes,
    Hosts,
}

impl Tab {
    pub(super) const ALL: [Self; 5] = [Self::Devices, Self::Environments, Self::Users, Self::Processes, Self::Hosts];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Environments => "environments",
            Self::Users => "users",
            Self::Processes => "processes",
            Self::Hosts => "hosts",
        }
    }

    /// The tab of a key: the first letter of its name, or its number.
    fn of_key(character: char) -> Option<Self> {
        let mut numbered = Self::ALL.into_iter().zip('1'..);
        numbered.find(|(tab, number)| *number == character || tab.name().starts_with(character)).map(|(tab, _)| tab)
    }

    fn after(self, steps: usize) -> Self {
        Self::ALL[(self as usize + steps) % Self::ALL.len()]
    }
}

/// A text in place of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Help,
    Troubles,
    Enforcer,
}

/// What a key asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Go,
    Quit,
    Suspend,
    /// To draw the whole screen anew.
    Redraw,
}

/// The sorting of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sorting {
    /// The name of a column; without one, the order of the view.
    pub(super) column: Option<&'static str>,
    pub(super) is_reversed: bool,
}

/// A table with its filter and its selection, to which one can come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tab: Tab,
    /// Only rows that belong to it are shown.
    pub(super) scope: Option<Key>,
    pub(super) filter: String,
    selected: Option<Key>,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    pub(super) place: Place,
    /// Whether keys are part of the filter.
    pub(super) is_editing: bool,
    pub(super) page: Option<Page>,
    /// The first shown line of the page.
    pub(super) scroll: usize,
    /// The number of the selected row, and of the first shown row.
    pub(super) position: usize,
    pub(super) top: usize,
    /// The number of rows on the screen.
    height: usize,
    sortings: [Sorting; Tab::ALL.len()],
    earlier: Vec<Place>,
}

impl Place {
    const fn new(tab: Tab, scope: Option<Key>) -> Self {
        Self { tab, scope, filter: String::new(), selected: None }
    }
}

impl Default for View {
    fn default() -> Self {
        Self {
            place: Place::new(Tab::Devices, None),
            is_editing: false,
            page: None,
            scroll: 0,
            position: 0,
            top: 0,
            height: 1,
            sortings: [Sorting::default(); Tab::ALL.len()],
            earlier: Vec::new(),
        }
    }
}

impl View {
    pub(super) fn sorting(&self) -> Sorting {
        self.sortings[self.place.tab as usize]
    }

    /// Filters and sorts the rows of the present tab.
    pub(super) fn arrange(&self, grid: &mut Grid) {
        grid.keep(self.place.scope.as_ref(), &self.place.filter);
        let sorting = self.sorting();
        grid.sort(sorting.column, sorting.is_reversed);
    }

    /// Finds the selected row among the present ones, and scrolls to it on a screen with so many rows.
    pub(super) fn settle(&mut self, grid: &Grid, height: usize) {
        self.height = height.max(1);
        let last = grid.rows.len().saturating_sub(1);
        let selected = self.place.selected.as_ref();
        let found = selected.and_then(|selected| grid.rows.iter().position(|row| row.key == *selected));
        // The place of a row that is gone.
        self.position = found.unwrap_or(self.position).min(last);
        self.place.selected = grid.rows.get(self.position).map(|row| row.key.clone());
        let lowest = (self.position + 1).saturating_sub(self.height);
        self.top = self.top.clamp(lowest, self.position).min((last + 1).saturating_sub(self.height));
    }

    /// Changes the state by a key. `grid` has the shown rows.
    pub(super) fn press(&mut self, key: KeyEvent, grid: &Grid) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Wish::Quit,
                KeyCode::Char('z') => return Wish::Suspend,
                KeyCode::Char('l') => return Wish::Redraw,
                KeyCode::Char('u') if self.is_editing => self.place.filter.clear(),
                _ => {}
            }
            return Wish::Go;
        }
        if self.is_editing && self.edit(key.code) || self.page.is_some() && self.turn(key.code) {
            return Wish::Go;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('?') => self.open(Page::Help),
            KeyCode::Char('t') => self.open(Page::Troubles),
            KeyCode::Char('!') => self.open(Page::Enforcer),
            KeyCode::Char('/') => (self.is_editing, self.page) = (true, None),
            KeyCode::Char('s') => self.sort_by_next(grid),
            KeyCode::Char('r') => {
                let sorting = &mut self.sortings[self.place.tab as usize];
                sorting.is_reversed = !sorting.is_reversed;
            }
            KeyCode::Tab => self.show(self.place.tab.after(1)),
            KeyCode::BackTab => self.show(self.place.tab.after(Tab::ALL.len() - 1)),
            KeyCode::Enter => self.descend(grid),
            KeyCode::Esc if !self.place.filter.is_empty() => self.place.filter.clear(),
            KeyCode::Esc | KeyCode::Backspace => self.go_back(),
            code => match code.as_char().and_then(Tab::of_key) {
                Some(tab) => self.show(tab),
                None => self.select(code, grid),
            },
        }
        Wish::Go
    }

    /// Changes the filter. `false` for a key that does not.
    fn edit(&mut self, code: KeyCode) -> bool {
        let filter = &mut self.place.filter;
        match code {
            KeyCode::Char(character) if filter.chars().count() < LONGEST_FILTER => filter.push(character),
            KeyCode::Char(_) => {}
            KeyCode::Backspace if !filter.is_empty() => drop(filter.pop()),
            KeyCode::Esc => {
                filter.clear();
                self.is_editing = false;
            }
            KeyCode::Backspace | KeyCode::Enter => self.is_editing = false,
            _ => return false,
        }
        true
    }

    /// Scrolls or closes the page. `false` for another key.
    fn turn(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Enter => self.page = None,
            _ => match moved(code, self.scroll, self.height) {
                // The end is known when the page is drawn.
                Some(scroll) => self.scroll = scroll,
                None => return false,
            },
        }
        true
    }

    /// Opens a page, or closes it if it is open.
    fn open(&mut self, page: Page) {
        self.page = if self.page == Some(page) { None } else { Some(page) };
        self.scroll = 0;
    }

    fn show(&mut self, tab: Tab) {
        let filter = std::mem::take(&mut self.place.filter);
        self.place = Place { filter, ..Place::new(tab, None) };
        self.earlier.clear();
        self.begin();
    }

    /// Shows what belongs to the selected row.
    fn descend(&mut self, grid: &Grid) {
        let row = grid.rows.get(self.position);
        if let Some((row, tab)) = row.and_then(|row| Some((row, row.leads?))) {
            let here = std::mem::replace(&mut self.place, Place::new(tab, Some(row.key.clone())));
            self.earlier.push(here);
            self.begin();
        }
    }

    fn go_back(&mut self) {
        if let Some(place) = self.earlier.pop() {
            self.place = place;
            self.begin();
        }
    }

    /// Begins at the first row, or at the selected one.
    fn begin(&mut self) {
        (self.position, self.top, self.page) = (0, 0, None);
    }

    fn sort_by_next(&mut self, grid: &Grid) {
        let sorting = &mut self.sortings[self.place.tab as usize];
        let columns = grid.columns.iter().filter(|it| !matches!(it.form, Form::Graph(_)));
        let mut names = columns.map(|it| it.name);
        sorting.is_reversed = false;
        sorting.column = match sorting.column {
            None => names.next(),
            Some(column) => names.skip_while(|name| *name != column).nth(1),
        };
    }

    fn select(&mut self, code: KeyCode, grid: &Grid) {
        if let Some(position) = moved(code, self.position, self.height) {
            self.position = position.min(grid.rows.len().saturating_sub(1));
            self.place.selected = grid.rows.get(self.position).map(|row| row.key.clone());
        }
    }
}

/// The number to which a key moves; `None` for another key.
fn moved(code: KeyCode, from: usize, height: usize) -> Option<usize> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => from.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => from.saturating_add(1),
        KeyCode::PageUp => from.saturating_sub(height),
        KeyCode::PageDown => from.saturating_add(height),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => return None,
    })
}
