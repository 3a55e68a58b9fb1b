//! The program and its HTTP service, tried from outside.

mod http;
mod reference;
mod sql;
mod support;
