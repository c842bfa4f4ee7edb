"""Programs of this repository: a borrowed card's stages (`real_card`), shipped bundles, schemas, checks."""
