//! Tokenizers and chat templates for Sixfold's text module, behind the C ABI of
//! include/sixfold_text.h.

mod budget;
mod clock;
mod declared;
pub mod ffi;
mod filters;
mod gguf;
mod lean;
mod pieces;
mod pybraces;
mod pyformat;
mod pymethods;
mod pyops;
mod pyseq;
mod pytests;
mod pyvalue;
mod rewrite;
mod scalars;
mod sequences;
mod source;
mod template;
mod tokenizer;

#[global_allocator]
static ALLOCATOR: budget::Counting = budget::Counting;
