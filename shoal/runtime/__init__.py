"""What any launcher of programs needs: seeds, devices, interrupts."""
