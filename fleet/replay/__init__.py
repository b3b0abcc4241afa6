"""One fresh process: settings, inputs, engine, records. torch lives here only."""
