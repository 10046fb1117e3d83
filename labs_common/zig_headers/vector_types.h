// All of it is in the prelude, as NVRTC has it built in.
