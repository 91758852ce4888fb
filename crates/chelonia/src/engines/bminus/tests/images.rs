//! Tests of images in homes: what crashes, failures and the device leave.
