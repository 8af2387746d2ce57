// The core's log messages go to Python's loggers "mlcc.<channel>", whose levels decide what the
// core writes.
#pragma once

namespace mlcc::python {

void install_log_sink();

// Reads the loggers' levels. They may change at any time, so this runs before each compilation;
// holds the GIL.
void sync_log_levels();

}  // namespace mlcc::python
