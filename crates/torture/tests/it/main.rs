//! The runs in the sizes of continuous integration.

#![expect(clippy::print_stdout, reason = "each run tells its figure")]

use orogen_torture::report::Figure;
use orogen_torture::{concurrent, crash, metamorphic, scripts};

fn tell(figure: &Figure) {
    println!("{figure}");
    figure.must_pass();
}

#[test]
fn crash_points_of_all_scripts() {
    for script in scripts::all() {
        tell(&crash::run(&script, &crash::Config::default()));
    }
}

#[test]
fn metamorphic() {
    tell(&metamorphic::run(&metamorphic::Config::default()));
}

#[test]
fn concurrent() {
    tell(&concurrent::run(&concurrent::Config::default()));
}
