"""Training of the detector's tagger: texts that it learns from, nets, calibration. No node imports it."""
