//! The terminal: entered, drawn to, and left as it was.

use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Color, Effects, Style};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use genv_core::terminal;
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::{Position, Size};
use ratatui_core::terminal::Terminal;

/// The alternate screen, without a cursor; and back, with the usual colours.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The screen, which a drop leaves.
pub(super) struct Screen(Terminal<Ansi<BufWriter<io::Stdout>>>);

impl Screen {
    /// Enters the alternate screen.
    pub(super) fn enter() -> io::Result<Self> {
        let has_colours = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        let backend = Ansi { out: BufWriter::new(io::stdout()), has_colours, size };
        let screen = Self(Terminal::new(backend)?);
        enter()?;
        Ok(screen)
    }

    /// Enters the alternate screen again after [`leave`].
    pub(super) fn enter_again(&mut self) -> io::Result<()> {
        enter()?;
        self.0.clear()
    }

    /// Draws a frame: what differs from the last one.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.0.draw(|frame| draw(frame.buffer_mut())).map(drop)
    }

    /// Draws the next frame as a whole.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.0.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    IS_ENTERED.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    let mut out = io::stdout();
    out.write_all(ENTER)?;
    out.flush()
}

/// Leaves the alternate screen, and restores the modes of the terminal. Does nothing a second time.
pub(super) fn leave() {
    if IS_ENTERED.swap(false, Ordering::SeqCst) {
        // The terminal may be gone, and then there is nothing to restore.
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        let _ = disable_raw_mode();
    }
}

fn size() -> Size {
    terminal::size(io::stdout()).into()
}

/// Writes cells in sequences that every terminal knows: the 16 colours, which its theme chooses.
struct Ansi<W> {
    out: W,
    has_colours: bool,
    size: fn() -> Size,
}

impl<W: Write> Ansi<W> {
    fn style(&self, cell: &Cell) -> Style {
        let colour = |it| AnsiColor::try_from(it).ok().filter(|_| self.has_colours).map(Color::Ansi);
        Style::new().fg_color(colour(cell.fg)).bg_color(colour(cell.bg)).effects(Effects::from(cell.modifier))
    }
}

impl<W: Write> Backend for Ansi<W> {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        // Terminals differ in the width of other characters, so that the next position is known only after ASCII.
        let mut next = None;
        let mut current = Style::new();
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                write!(self.out, "\x1b[{};{}H", y + 1, x + 1)?;
            }
            let style = self.style(cell);
            if style != current {
                write!(self.out, "\x1b[0m{style}")?;
                current = style;
            }
            self.out.write_all(cell.symbol().as_bytes())?;
            next = (cell.symbol().len() == 1).then_some((x + 1, y));
        }
        if current != Style::new() {
            self.out.write_all(b"\x1b[0m")?;
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25h")
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    /// Clears the whole screen: no other region is asked for.
    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.out.write_all(b"\x1b[0m\x1b[2J")
    }

    fn size(&self) -> io::Result<Size> {
        Ok((self.size)())
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::layout::Rect;

    use super::*;
    use crate::output::GOOD;

    #[test]
    fn cells_are_written_in_16_colours_or_none() {
        for (has_colours, style) in [(true, "\x1b[0m\x1b[32m"), (false, "")] {
            let size = || Size { width: 9, height: 1 };
            let mut terminal = Terminal::new(Ansi { out: Vec::new(), has_colours, size }).unwrap();
            let draw = |buffer: &mut Buffer| {
                buffer.set_string(0, 0, "a▁b", GOOD);
                assert_eq!(buffer.area, Rect::new(0, 0, 9, 1));
            };
            terminal.draw(|frame| draw(frame.buffer_mut())).unwrap();
            let written = String::from_utf8(terminal.backend().out.clone()).unwrap();
            let end = if has_colours { "\x1b[0m" } else { "" };
            assert_eq!(written, format!("\x1b[1;1H{style}a▁\x1b[1;3Hb{end}\x1b[?25l"));
        }
    }
}
