//! placeholder
#[derive(clap::Args, Debug)]
/// x
pub struct Report {}
/// x
pub fn report(_: &Report) -> crate::failure::Result<()> {
    Ok(())
}
