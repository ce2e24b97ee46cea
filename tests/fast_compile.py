"""What lets programs of tests, which run for milliseconds or seconds, compile fast."""

TWO_DEVICES = "--xla_force_host_platform_device_count=2"
"""Two CPU devices, so that sharded programs are tested on every machine."""
FLAG = (
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    " --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE --xla_cpu_parallel_codegen_split_count=1"
)
"""XLA's newer emitters of fusions take a third of the time to compile, for programs that then run
up to twice as fast. The preset, and code that is not split into parts for many cores, take a sixth
of the processor time of what remains."""
UNOPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
"""The variable of JAX's option that programs are not optimized."""
