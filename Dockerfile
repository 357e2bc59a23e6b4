# The Attend server and tool for GPU nodes. The final image holds the installed bundle and nothing else.
#
#   docker build -t attend .
#   docker run --gpus all -p 50051:50051 -p 9464:9464 attend --insecure
#
# CPU only: --build-arg BUILD_IMAGE=debian:12-slim --build-arg RUN_IMAGE=debian:12-slim
#           --build-arg CUDA=OFF. Both images have to be of one distribution release, since the bundle takes
# glibc and libstdc++ from the image that it runs in.
ARG BUILD_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG RUN_IMAGE=ubuntu:24.04

# hadolint ignore=DL3006
FROM ${BUILD_IMAGE} AS build
ARG CUDA=ON
# Machine code for every supported chip, PTX behind the newest: a read-only root cannot keep a JIT's cache.
ARG CUDA_ARCHITECTURES="80-real;86-real;89-real;90a-real;100-real;120"
WORKDIR /src
COPY . .
RUN deploy/install-packages build \
    && cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DATTEND_TESTS=OFF -DATTEND_BENCHMARKS=OFF \
       -DATTEND_CUDA="${CUDA}" -DCMAKE_CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES}" \
    && cmake --build build/release \
    && cmake --install build/release --component bundle --strip --prefix /opt/attend

# hadolint ignore=DL3006
FROM ${RUN_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="attend" \
      org.opencontainers.image.description="Exact attention as a service: hand-written CUDA kernels behind gRPC" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/attend /opt/attend
# What the NVIDIA container runtime mounts: the driver's compute libraries and NVML, nothing for graphics.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PATH=/opt/attend/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ATTEND_ADDRESS=0.0.0.0:50051 \
    ATTEND_METRICS_ADDRESS=0.0.0.0:9464
USER 65532:65532
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["/opt/attend/bin/attend", "health", "--address=127.0.0.1:50051"]
ENTRYPOINT ["/opt/attend/bin/attend-server"]
