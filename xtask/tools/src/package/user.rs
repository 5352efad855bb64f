use ferroflash::{Backend, Cpu, Error, ForwardOptions, HostTensor, Layout, Shape, Sim, forward};

fn attention<B: Backend>(mut backend: B) -> Result<f32, Error> {
    let shape = Shape { batch: 1, heads: 1, seq: 5, dim: 8 };
    let x = HostTensor::from_f32(&[0.5; 40], shape, Layout::Bshd)?.upload(backend.memory())?;
    let out = forward(&mut backend, &x, &x, &x, &ForwardOptions::new())?;
    Ok(out.o.download(backend.memory())?.get(0, 0, 4, 7))
}

fn main() -> Result<(), Error> {
    assert_eq!(attention(Cpu::new())?, 0.5);
    assert_eq!(attention(Sim::new())?, 0.5);
    Ok(())
}
