"""What holds for the tests of all layers."""

import signal

# Where the tests are started in the background of a script, SIGINT is ignored, and every process
# that a test starts and interrupts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
