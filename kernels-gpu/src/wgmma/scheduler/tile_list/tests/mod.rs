mod case;
mod crew;
mod garbage;
mod orders;
