//! Accounting over random histories.
